"""What a plugin declares is told in words, also where nothing can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from srtkit.plugins.loading import load
from srtkit.plugins.registry import Registry, discover
from srtkit.spec.capabilities import NoOptions
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
    assert told("platform", "cpu") == {}


def test_a_kind_that_must_declare_and_does_not_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor of another type has its plugin blamed; it is not one that declares nothing."""
    monkeypatch.setattr(subject, "load", lambda offer: load(offer) if offer.kind == "platform" else NoOptions())
    assert "transport:zmq" in told("transport", "zmq")["capabilities"]


def test_a_bool_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Can:
        fast: bool = True
        wide: bool = False
        rows: int = 1

    made = SimpleNamespace(options=NoOptions, capabilities=lambda options: Can())
    monkeypatch.setattr(subject, "load", lambda offer: load(offer) if offer.kind == "platform" else made)
    assert told("transport", "zmq") == {"fast": "yes", "wide": "no", "rows": "1"}


def test_a_device_that_vanishes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = SimpleNamespace(options=NoOptions, probe=lambda options: ())
    monkeypatch.setattr(subject, "load", lambda offer: gone if offer.kind == "platform" else load(offer))
    assert told("attention", "torch")["capabilities"].startswith("unknown: platform: the device that was found")


def test_without_a_device_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(registry: Registry) -> str:
        raise DeviceAbsent("platform", "no installed platform finds its device", "plug one in")

    monkeypatch.setattr(subject, "detect_platform", nothing)
    assert told("attention", "torch") == {"capabilities": "unknown: platform: no installed platform finds its device"}
