"""What a plugin declares is told in words, also where nothing can be asked."""

from __future__ import annotations

import pytest

from srtkit.plugins.registry import Registry, discover
from srtkit.spec.errors import DeviceAbsent
from srtkit_conformance import declared as subject


def told(kind: str, name: str) -> dict[str, str]:
    registry = discover()
    return dict(subject.declared(registry.find(kind, name), registry))


def test_features_sizes_and_refusals() -> None:
    rows = told("attention", "torch")
    assert rows["page_sizes"] == "16, 1, 2, 3, 4, 5, 6, 7, …, 256"
    assert rows["features"] == "fp8_kv, mla, non_causal, sinks, soft_cap, tree_mask, window"
    assert rows["lse"] == "yes"
    assert rows["batch_invariant"].startswith("no: rows that share a prefix")
    assert told("transport", "inproc")["processes"].startswith("no: ")
    assert told("graph_runner", "eager")["gates"].startswith(("yes", "no: "))


def test_a_kind_without_capabilities_has_no_row() -> None:
    assert told("models", "models") == {}


def test_without_a_device_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(registry: Registry) -> str:
        raise DeviceAbsent("platform", "no installed platform finds its device", "plug one in")

    monkeypatch.setattr(subject, "detect_platform", nothing)
    assert told("attention", "torch") == {"capabilities": "unknown: platform: no installed platform finds its device"}
