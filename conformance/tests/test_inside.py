"""A plugin's own test asks the suite what is wrong with the plugin."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from srtkit.spec.errors import PluginNotFound
from srtkit_conformance import inside
from srtkit_conformance.catalogue import Suite
from srtkit_conformance.inside import shortcomings


@pytest.fixture(autouse=True)
def only_toys(toys: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy checks are the suite of every kind."""
    monkeypatch.setattr(inside, "suite_for", lambda kind: toys)


def test_what_is_wrong_is_told_by_check() -> None:
    assert shortcomings("prefix_cache:radix") == ["prefix_cache.toy_shares: shares though it must not"]


def test_a_plugin_without_a_fault_has_none() -> None:
    assert shortcomings("prefix_cache:chunk") == []


def test_checks_above_the_level_are_not_run() -> None:
    assert shortcomings("prefix_cache:radix", level=0) == []


def test_options_and_names_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValidationError, match="evict"):
        shortcomings("prefix_cache:radix", evict="lru")
    with pytest.raises(PluginNotFound, match="nobody"):
        shortcomings("prefix_cache:nobody")
