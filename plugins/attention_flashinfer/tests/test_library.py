"""What `find` makes of an installed FlashInfer, and whether the recorded signatures are still true."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from plugins.attention_flashinfer.tests import double, signatures
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_attention_flashinfer.library import DECODE, PREFILL, find

RECORDED = json.loads(signatures.TABLE.read_text(encoding="utf-8"))


def test_it_is_found(runs: double.Log) -> None:
    found = find()
    assert found.version == RECORDED["version"]
    assert found.decode is sys.modules["flashinfer"].BatchDecodeWithPagedKVCacheWrapper


def test_without_it_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(DeviceAbsent, match=r"cannot be imported(.|\n)*pip install 'flashinfer-python>=0.7.4'"):
        find()


@pytest.mark.parametrize("version", ["0.6.18", "0.7.3", "0.0.0+unknown"])
def test_older_ones_are_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", double.module([], version))
    with pytest.raises(DeviceAbsent, match=f"flashinfer {version} is too old; 0.7.4".replace("+", r"\+")):
        find()


@pytest.mark.parametrize("version", ["0.7.4", "0.7.5rc1", "0.10.0", "1.0"])
def test_later_ones_are_taken(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", double.module([], version))
    assert find().version == version


def test_a_renamed_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = double.module([])

    def plan(self: Any, qo_indptr: Any) -> None:
        """Of a later version."""

    module.BatchPrefillWithPagedKVCacheWrapper.plan = plan
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    with pytest.raises(
        Unsupported, match=r"other arguments than it did: .*PagedKVCacheWrapper.plan\(paged_kv_indptr\)"
    ):
        find()


# --- the recorded signatures


@pytest.mark.parametrize(
    ("wrapper", "given"),
    [("BatchDecodeWithPagedKVCacheWrapper", DECODE), ("BatchPrefillWithPagedKVCacheWrapper", PREFILL)],
)
def test_every_argument_that_is_given_is_in_the_source(wrapper: str, given: dict[str, tuple[str, ...]]) -> None:
    methods = RECORDED["signatures"][wrapper]
    for method, names in given.items():
        known = [argument[0] for argument in methods[method]]
        if "kwargs" in known:  # handed on as they are
            known += [argument[0] for argument in methods["_plan_impl"]]
        assert set(names) <= set(known), method


def test_an_installed_version_has_them() -> None:
    found = importlib.util.find_spec("flashinfer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("flashinfer is not installed")
    version = importlib.metadata.version("flashinfer-python")
    if version != RECORDED["version"]:
        pytest.skip(f"signatures are recorded of {RECORDED['version']}, and {version} is installed")
    assert signatures.read(Path(found.submodule_search_locations[0])) == RECORDED["signatures"]


def test_they_are_read_from_source(tmp_path: Path) -> None:
    for wrapper, file in signatures.WRAPPERS.items():
        body = "    def run(self, q): ...\n    def run(self, q, *args, out=None, base='log2'): ...\n"
        (tmp_path / file).write_text(f"class {wrapper}:\n{body}", encoding="utf-8")
    expected = [
        ["q", "POSITIONAL_OR_KEYWORD", "-"],
        ["args", "VAR_POSITIONAL", "-"],
        ["out", "KEYWORD_ONLY", "None"],
        ["base", "KEYWORD_ONLY", "'log2'"],
    ]
    assert signatures.read(tmp_path) == {wrapper: {"run": expected} for wrapper in signatures.WRAPPERS}
