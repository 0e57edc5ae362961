"""Where the operator comes from, and calls of it by argument name."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from plugins.attention_fa3.tests import double
from srtkit.spec.errors import ConfigError, DeviceAbsent, Unsupported
from srtkit_plugin_attention_fa3.library import Call, find

numbers = itertools.count()
Define = Callable[[str], Any]


@pytest.fixture
def define() -> Iterator[Define]:
    """Registers an operator that gives back its arguments' sum."""
    library = torch.library.Library(f"fa3_test_{next(numbers)}", "DEF")

    def one(schema: str) -> Any:
        name = library.define(schema)
        library.impl(name, lambda *args: sum(x for x in args if x is not None), "CompositeExplicitAutograd")
        return getattr(getattr(torch.ops, library.ns), schema.partition("(")[0]).default

    yield one
    library._destroy()


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Packages of these files, found before any others."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no library")
        (folder / name.partition("/")[0] / "__init__.py").write_text("raise AssertionError('it was imported')")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


# --- finding it


def test_one_that_is_loaded_is_taken(calls: list[dict[str, Any]], provider: str) -> None:
    found = find("")
    assert found.provider == {"_vllm_fa3_C": "vllm", "sgl_kernel": "sgl_kernel"}[provider]
    assert found.schedule is not None


def test_without_any_it_says_what_to_install() -> None:
    with pytest.raises(DeviceAbsent, match=r"neither sgl_kernel nor vllm is installed(.|\n)*pip install vllm"):
        find("")


@pytest.mark.parametrize("name", ["vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", "sgl_kernel/flash_ops.abi3.so"])
def test_packages_are_looked_into_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    installed(tmp_path, monkeypatch, name)
    with pytest.raises(DeviceAbsent, match=rf"{name} does not load: (.|\n)*torch here is"):
        find("")


def test_a_package_without_the_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "vllm/other.so")
    with pytest.raises(DeviceAbsent, match=r"nothing matches .*vllm_flash_attn/_vllm_fa3_C\*\.so"):
        find("")


@pytest.mark.parametrize(("name", "package"), [("_vllm_fa3_C.abi3.so", "vllm"), ("flash_ops.abi3.so", "sgl_kernel")])
def test_a_library_that_is_loaded_already_is_not_taken_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    (tmp_path / name).touch()
    (tmp_path / "libother.so").touch()
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    with double.registered("_vllm_fa3_C", []), double.registered("sgl_kernel", []):
        assert find(str(tmp_path / name)).provider == package
        with pytest.raises(DeviceAbsent, match=r"libother\.so registers no operator"):
            find(str(tmp_path / "libother.so"))


def test_a_path_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="library names no file"):
        find(str(tmp_path / "missing.so"))


def test_a_library_without_the_operator() -> None:
    other = next(Path(torch.__file__).parent.glob("lib/libtorch_cpu.so"))
    with pytest.raises(DeviceAbsent, match="registers no operator"):
        find(str(other))


# --- calling it


def test_arguments_go_where_the_schema_has_them(define: Define) -> None:
    call = Call(define("fwd(int seqused_k, int? k_new, int sm_margin, int q) -> int"), ("q", "seqused_k"))
    assert call(q=3, seqused_k=4) == 7


def test_new_arguments_with_a_default_are_left_alone(define: Define) -> None:
    call = Call(define("fwd(int q, int? sinks, int newer=5, int newest=6) -> int"), ("q",))
    assert call(q=1) == 1, "torch hands no defaults to a kernel in Python"


@pytest.mark.parametrize(
    ("schema", "strange"),
    [
        ("fwd(int q, int newer) -> int", "newer"),
        ("fwd(int newer=5, int q=1) -> int", "newer"),
        ("fwd(int k_new) -> int", "q"),
    ],
    ids=["unknown", "before known ones", "missing"],
)
def test_arguments_that_are_not_understood_are_refused(define: Define, schema: str, strange: str) -> None:
    with pytest.raises(Unsupported, match=f"takes other arguments than it did: {strange}"):
        Call(define(schema), ("q",))


# --- the double itself


def test_the_double_has_as_many_arguments_as_the_libraries() -> None:
    counts = {name: schemas[0].partition(") ->")[0].count(",") + 1 for name, schemas in double.SCHEMAS.items()}
    assert counts == {"_vllm_fa3_C": 37, "sgl_kernel": 35}
