"""The gate of the contracts' versions: what is an addition, what a break, and which version each needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools import api, compatibility, release
from tools.api_diff import differences
from tools.api_read import SHARED, read
from tools.dists import ROOT

MODULE = '''"""A contract."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Role = Literal["target", "draft"]
LIMITS: dict[str, int] = {"rows": 4}
_hidden = 1


@dataclass(frozen=True)
class Spec:
    """Data."""

    heads: int
    window: int = 0
    soft_cap: float = 0.0

    @property
    def features(self) -> frozenset[str]:
        """Names."""
        return frozenset()


@dataclass(frozen=True, kw_only=True)
class Descriptor:
    """Data by name."""

    contract: str
    build: object


class Rows(Enum):
    ALL = "all"


class Backend(ABC):
    """Implemented by plugins."""

    @abstractmethod
    def attend(self, q: int, *, lse: int | None = None) -> None:
        """Work."""


class Layer:
    """Used by plugins."""

    def __init__(self, spec: Spec) -> None:
        self.heads = spec.heads + 0


def check(spec: Spec, part: str = "") -> str:
    """Called by plugins."""
    return ""
'''

HARMLESS = [
    ('"""Called by plugins."""', '"""Other words."""'),
    ("_hidden = 1", "_hidden = 2"),
    ('{"rows": 4}', '{"rows": 4, "tokens": 8}'),
    ("spec.heads + 0", "spec.heads + 1"),
    ('return ""', 'return "other"'),
]
ADDITIONS = [
    ("    soft_cap: float = 0.0\n", "    soft_cap: float = 0.0\n    topk: int = 0\n", "Spec.topk was added"),
    ("    contract: str\n", "    requires: tuple[str, ...] = ()\n    contract: str\n", "Descriptor.requires was added"),
    ('ALL = "all"\n', 'ALL = "all"\n    NONE = "none"\n', "Rows.NONE was added"),
    ('part: str = ""', 'part: str = "", *, short: bool = False', "check takes more: short: bool = False"),
    ("spec: Spec) -> None", "spec: Spec, bias: bool = False) -> None", "Layer.__init__ takes more"),
    ("    heads: int\n", "    heads: int = 8\n", "Spec.heads has another value: none → 8"),
    ("def check(", "def later() -> None: ...\n\n\ndef check(", "later was added"),
    ("class Layer:", "class Layer(Backend):", "Layer is a Backend, too"),
    (
        "class Layer:",
        "class Layer:\n    def pack(self) -> None: ...\n",
        "Layer.pack was added",
    ),
]
BREAKS = [
    ("    window: int = 0\n", "", "Spec.window was removed"),
    ("    window: int = 0\n", "    window: float = 0\n", "Spec.window has another type: int → float"),
    ("    window: int = 0\n", "    window: int = 1\n", "Spec.window has another value: 0 → 1"),
    ("    window: int = 0\n", "    window: int\n", "Spec.window has another value: 0 → none"),
    ("    window: int = 0\n", "    topk: int = 0\n    window: int = 0\n", "Spec.topk was added before fields"),
    ("    contract: str\n", "    needs: str\n    contract: str\n", "Descriptor.needs was added without a default"),
    (
        "    window: int = 0\n    soft_cap: float = 0.0\n",
        "    soft_cap: float = 0.0\n    window: int = 0\n",
        "Spec has its members in another order",
    ),
    ("    @property\n", "", "Spec.features was a property, now it is a function"),
    ('"target", "draft"', '"target"', "Role has another value"),
    ('ALL = "all"', 'ALL = "every"', "Rows.ALL has another value: 'all' → 'every'"),
    ("(frozen=True)\nclass Spec", "()\nclass Spec", "Spec has another decorators"),
    ("class Backend(ABC):", "class Backend:", "Backend is no ABC any more"),
    ("class Layer:", "    @abstractmethod\n    def close(self): ...\n\n\nclass Layer:", "Backend.close was added, and"),
    ("q: int, *,", "q: int, *, fresh: int | None = None,", "Backend.attend takes other parameters"),
    ("spec: Spec, part", "spec: Spec, can: int, part", "check takes other parameters"),
    ("spec: Spec, part", "layer: Spec, part", "check takes other parameters"),
    ("-> str:", "-> bool:", "check has another returns: str → bool"),
]  # fmt: skip


def source(folder: Path, edits: Mapping[str, str] | None = None, module: str = "attention") -> Path:
    """A source tree with one module of the contract."""
    spec = folder / "srtkit" / "spec"
    spec.mkdir(parents=True, exist_ok=True)
    for package in (spec, spec.parent):
        (package / "__init__.py").touch()
    text = MODULE
    for old, new in (edits or {}).items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (spec / f"{module}.py").write_text(text)
    return folder


def found(folder: Path, old: str, new: str) -> list[tuple[str, bool]]:
    """What an edit of the module changes."""
    before = read(source(folder / "before"))["attention"]
    after = read(source(folder / "after", {old: new}))["attention"]
    return [(str(one), one.breaks) for one in differences(before, after)]


@pytest.mark.parametrize(("old", "new"), HARMLESS)
def test_what_is_no_part_of_the_contract_differs_in_silence(tmp_path: Path, old: str, new: str) -> None:
    assert found(tmp_path, old, new) == []


@pytest.mark.parametrize(("old", "new", "sentence"), ADDITIONS)
def test_an_addition_is_one(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    ((said, breaks),) = found(tmp_path, old, new)
    assert said.startswith(f"attention.{sentence}")
    assert not breaks


@pytest.mark.parametrize(("old", "new", "sentence"), BREAKS)
def test_a_break_is_one(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    said = [one for one, breaks in found(tmp_path, old, new) if breaks]
    assert len(said) == 1
    assert said[0].startswith(f"attention.{sentence}")


ADD = {"    soft_cap: float = 0.0\n": "    soft_cap: float = 0.0\n    topk: int = 0\n"}
BREAK = {"    window: int = 0\n": ""}


def versions(shared: tuple[int, int] = (1, 0), **kinds: tuple[int, int]) -> dict[str, tuple[int, int]]:
    return dict.fromkeys(api.VERSIONS, (1, 0)) | kinds | {SHARED: shared}


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """Version 1.0 of everything, with the module as `attention` and as a shared one."""
    folder = tmp_path / "api"
    start = source(source(tmp_path / "source"), module="kv")
    for name in api.VERSIONS:
        release.release(name, start, folder, versions())
    return folder


@pytest.mark.parametrize(
    ("edits", "version", "fault"),
    [
        ({}, (1, 0), ""),
        ({}, (1, 1), ""),
        ({}, (1, 2), "attention cannot be 1.2 after 1.0"),
        ({}, (0, 9), "attention cannot be 0.9 after 1.0"),
        (ADD, (1, 0), "attention adds to 1.0: it must become 1.1"),
        (ADD, (1, 1), ""),
        (BREAK, (1, 0), "attention breaks 1.0: it must become 2.0, and 1.0 needs an adapter"),
        (BREAK, (1, 1), "attention breaks 1.0: it must become 2.0, and 1.0 needs an adapter"),
        (
            BREAK,
            (2, 0),
            "attention is 2.0, and plugins of an older major need an adapter: srtkit/plugins/adapters/attention_v1.py",
        ),
    ],
)
def test_each_change_has_its_version(
    tmp_path: Path, snapshots: Path, edits: dict[str, str], version: tuple[int, int], fault: str
) -> None:
    now = source(tmp_path / "source", edits)
    assert list(api.faults(api.parts(now, snapshots, versions(attention=version)))) == ([fault] if fault else [])


def adapt(source: Path, *names: str) -> None:
    """Put adapters for the first major into a source tree."""
    for name in names:
        (source / api.ADAPTERS).mkdir(parents=True, exist_ok=True)
        (source / api.ADAPTERS / f"{name}_v1.py").touch()


def test_a_new_major_needs_an_adapter_as_long_as_the_old_one_has_a_snapshot(tmp_path: Path, snapshots: Path) -> None:
    now = source(tmp_path / "source", BREAK)
    second = versions(attention=(2, 0))
    with pytest.raises(release.Refused, match="need an adapter"):
        release.release("attention", now, snapshots, second)
    adapt(now, "attention")
    assert list(api.faults(api.parts(now, snapshots, second))) == []
    release.release("attention", now, snapshots, second)
    (now / api.ADAPTERS / "attention_v1.py").unlink()
    (fault,) = api.faults(api.parts(now, snapshots, second))
    assert "need an adapter" in fault
    shutil.rmtree(snapshots / "attention-1.0")
    assert list(api.faults(api.parts(now, snapshots, second))) == []


def test_a_break_of_what_kinds_share_breaks_every_kind(tmp_path: Path, snapshots: Path) -> None:
    now = source(tmp_path / "source", BREAK, module="kv")
    every = dict.fromkeys(api.VERSIONS, (2, 0))
    adapt(now, *(name for name in every if name != SHARED))
    assert list(api.faults(api.parts(now, snapshots, every))) == []
    (fault,) = api.faults(api.parts(now, snapshots, {**every, "ops": (1, 0), "cli": (1, 0)}))
    assert fault.endswith("these have none: ops, cli")


def test_a_kind_without_a_snapshot_is_a_fault(tmp_path: Path, snapshots: Path) -> None:
    shutil.rmtree(snapshots / "cli-1.0")
    assert list(api.faults(api.parts(tmp_path / "source", snapshots, versions()))) == [
        "cli has no snapshot: python -m tools.release cli"
    ]


def test_a_release_does_not_touch_what_is_there(tmp_path: Path, snapshots: Path) -> None:
    now = source(tmp_path / "source", ADD)
    before = (snapshots / "attention-1.0" / "attention.json").read_bytes()
    with pytest.raises(release.Refused, match=r"attention 1.0 is released and stays as it was"):
        release.release("attention", now, snapshots, versions())
    assert release.release("attention", now, snapshots, versions(attention=(1, 1))).name == "attention-1.1"
    assert "topk" in json.loads((snapshots / "attention-1.1" / "attention.json").read_text())["Spec"]["members"]
    assert (snapshots / "attention-1.0" / "attention.json").read_bytes() == before
    assert api.released("attention", snapshots) == [(1, 0), (1, 1)]


def test_a_release_of_a_break_as_a_minor_is_refused(tmp_path: Path, snapshots: Path) -> None:
    now = source(tmp_path / "source", BREAK)
    with pytest.raises(release.Refused, match=r"must become 2.0"):
        release.release("attention", now, snapshots, versions(attention=(1, 1)))
    assert not (snapshots / "attention-1.1").exists()


def test_the_page_says_what_a_minor_added(tmp_path: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release.release("attention", source(tmp_path / "source", ADD), snapshots, versions(attention=(1, 1)))
    monkeypatch.setattr(compatibility, "released", lambda name: api.released(name, snapshots))
    monkeypatch.setattr(compatibility, "snapshot", lambda name, version: api.snapshot(name, version, snapshots))
    page = compatibility.page()
    assert "| attention | 1.0, 1.1 | `srtkit.attention.v1` |" in page
    assert "- attention 1.1: `attention.Spec.topk` was added\n" in page


def test_the_contracts_of_this_repository_keep_their_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert api.main() == 0, capsys.readouterr()
    assert {path.name.rpartition("-")[0] for path in (ROOT / "core" / "api").iterdir()} == set(api.VERSIONS)
