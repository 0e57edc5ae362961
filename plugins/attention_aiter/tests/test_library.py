"""The signature lock: what is called, against the recorded signatures and those of the wheel. And finding aiter."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import srtkit_plugin_attention_aiter as plugin
from plugins.attention_aiter.tests.double import NEWER, OLD, TABLE, recorded, signature
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_attention_aiter import library

VERSIONS = pytest.mark.parametrize("version", [OLD, NEWER])


# --- the lock


@VERSIONS
@pytest.mark.parametrize("name", library.FUNCTIONS)
def test_what_is_listed_binds_by_name(name: str, version: str) -> None:
    """All that is given is there, and all that has no default is given."""
    module, function, arguments = library.called(name, newer=version == NEWER)
    recorded(version, module, function).bind(**dict.fromkeys(arguments))


@VERSIONS
def test_no_function_is_recorded_that_is_not_called(version: str) -> None:
    paths = {name: library.called(name, newer=version == NEWER) for name in library.FUNCTIONS}
    called = {f"{module.replace('.', '/')}.py:{function}" for module, function, _ in paths.values()}
    assert set(TABLE[version]) == called


def test_the_places_that_differ_between_versions() -> None:
    """What a call by position would get wrong, or one that gives a version the other's arguments."""
    places = [list(recorded(one, "aiter.mla", "mla_decode_fwd").parameters).index("sm_scale") for one in (OLD, NEWER)]
    assert places == [8, 10]
    for given, other in ((OLD, NEWER), (NEWER, OLD)):
        _, function, arguments = library.called("plan_work", newer=given == NEWER)
        with pytest.raises(TypeError):
            recorded(other, "aiter.ops.attention", function).bind(**dict.fromkeys(arguments))


@pytest.mark.full
def test_the_record_is_that_of_the_wheel() -> None:
    """Downloads the wheel, 40 MB, once."""
    wheel = pytest.importorskip("tools.aiter_wheel", reason="the repository's tools are not here")
    from srtkit_plugin_cli_debug.signatures import of_folder

    try:
        folder = wheel.fetch()
    except Exception as error:
        pytest.skip(f"the wheel cannot be had: {error}")
    assert wheel.VERSION == OLD
    assert of_folder(folder, TABLE[OLD]) == TABLE[OLD]


def test_the_extra_names_the_pre_release_exactly() -> None:
    metadata = importlib.metadata.metadata("srtkit-plugin-attention-aiter")
    required = metadata.get_all("Requires-Dist") or []
    assert f'amd-aiter=={OLD}; extra == "aiter"' in [one.replace("'", '"') for one in required]


# --- finding it


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """A torch for ROCm, and modules with functions of the recorded signatures, changed as told."""

    def one(version: str = OLD, *, number: str = "", without: str = "", changed: str = "") -> None:
        newer = version == NEWER
        monkeypatch.setattr(torch.version, "hip", "7.2")
        monkeypatch.setattr(library, "version", lambda name: number or ("0.1.13" if newer else OLD))
        made: dict[str, Any] = {}
        for name in library.FUNCTIONS:
            module, function, _ = library.called(name, newer=newer)
            place = made.setdefault(module, types.ModuleType(module))
            if function != without:

                def stand_in() -> None:
                    raise AssertionError("it was called")

                found = TABLE[version][f"{module.replace('.', '/')}.py:{function}"]
                stand_in.__signature__ = signature(found.replace(changed, "renamed", 1) if changed else found)  # type: ignore[attr-defined]
                vars(place)[function] = stand_in
        for module, place in made.items():
            monkeypatch.setitem(sys.modules, module, place)

    return one


@VERSIONS
def test_it_is_found_by_version(install: Install, version: str) -> None:
    install(version)
    found = library.find()
    assert found.newer == (version == NEWER)
    assert "kv_indptr" in inspect.signature(found.decode).parameters


def test_an_argument_that_drifted_is_named(install: Install) -> None:
    install(changed="seqused_k")
    with pytest.raises(Unsupported, match=r"other arguments than it did: unified_attention\(seqused_k\) not found"):
        library.find()


def test_a_function_that_is_gone_is_named(install: Install) -> None:
    install(without="mha_batch_prefill_func")
    with pytest.raises(Unsupported, match=r"aiter\.ops\.mha\.mha_batch_prefill_func not found"):
        library.find()


def test_a_module_that_has_moved_is_drift_too(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a machine in disorder, which a module that somebody else lacks is."""
    install()
    moved = "aiter.ops.triton.unified_attention"
    monkeypatch.setitem(sys.modules, moved, None)
    with pytest.raises(Unsupported, match=rf"{moved}\.unified_attention not found"):
        library.find()


def test_an_old_version_is_refused(install: Install) -> None:
    install(number="0.1.5")
    with pytest.raises(Unsupported, match=r"0\.1\.5 is too old; 0\.1\.7 is the oldest"):
        library.find()


def test_without_rocm_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(importlib, "import_module", None)
    with pytest.raises(DeviceAbsent, match="is not built for ROCm"):
        library.find()


def test_without_aiter_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2")
    with pytest.raises(DeviceAbsent, match=r"amd-aiter is not installed(.|\n)*attention-aiter\[aiter\]"):
        library.find()


def test_an_import_that_fails_is_a_device_that_is_absent(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install()

    def fail(name: str) -> None:
        raise RuntimeError("ROCm version file not found")

    monkeypatch.setattr(library.importlib, "import_module", fail)
    with pytest.raises(DeviceAbsent, match="cannot be imported: ROCm version file not found"):
        library.find()


def test_the_descriptor_imports_neither_torch_nor_aiter() -> None:
    source = inspect.getsource(plugin) + inspect.getsource(importlib.import_module(f"{plugin.__name__}.table"))
    assert "import torch" not in source and "import aiter" not in source
