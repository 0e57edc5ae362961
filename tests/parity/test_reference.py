"""The fixture is what its script makes of the model that is installed."""

from __future__ import annotations

import pytest

from tests.parity import reference
from tests.parity.make_reference import FIXTURE, NEW_TOKENS, PROMPTS, SCRIPT, model_path, sha256
from tests.parity.reference import EOS, Case

REMEDY = f"make {FIXTURE.name} again: python -m tests.parity.make_reference"


def test_the_script_has_not_changed_since() -> None:
    made_by, _ = reference.load()
    assert made_by["script_sha256"] == sha256(SCRIPT), REMEDY


@pytest.mark.model
def test_the_model_is_the_same() -> None:
    made_by, _ = reference.load()
    assert made_by["model_sha256"] == sha256(model_path()), REMEDY


def test_it_holds_what_the_tests_rely_on(cases: list[Case]) -> None:
    assert [case.name for case in cases] == list(PROMPTS)
    assert len(cases) == 20
    assert all(len(case.tokens) == NEW_TOKENS == 64 for case in cases)
    assert sum(EOS in case.tokens for case in cases if case.is_chat) >= 4
    assert min(len(case.ids) for case in cases) == 1
    assert max(len(case.ids) for case in cases) > 500
