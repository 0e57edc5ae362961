"""The generated pages are current, and say what the imported contract says."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import TypeVar

import pytest

from srtkit.spec import hookspecs
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.catalogue import checks_for
from tools import docs_tables
from tools.dists import ROOT

PAGES = docs_tables.pages()
LISTED = {*CONTRACTS, *docs_tables.SHARED}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == PAGES[path], "run `make docs`"


def test_no_page_is_left_over() -> None:
    folder = docs_tables.DOCS / "contracts"
    assert set(folder.glob("*.md")) == {path for path in PAGES if path.parent == folder}


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_hook_is_there_with_its_signature_and_docstring(kind: str) -> None:
    hook = vars(hookspecs)[f"srtkit_{kind}"]
    page = PAGES[docs_tables.DOCS / "hooks.md"]
    assert f"def {hook.__name__}{inspect.signature(hook)}:\n".replace("'", "") in page
    assert str(inspect.getdoc(hook)) in page
    assert CONTRACTS[kind].group in page


def test_a_contract_has_every_check_of_its_kind_with_its_clause() -> None:
    page = PAGES[docs_tables.DOCS / "contracts" / "transport.md"]
    for one in checks_for("transport"):
        assert f"| `{one.id}` | {one.level} | {one.clause} |\n" in page
    assert "## Checks" not in PAGES[docs_tables.DOCS / "contracts" / "cli.md"]


@pytest.mark.parametrize("module", sorted(LISTED))
def test_every_class_is_there_with_its_methods_and_fields(module: str) -> None:
    imported = importlib.import_module(f"srtkit.spec.{module}")
    page = PAGES[docs_tables.DOCS / "contracts" / f"{module}.md"]
    public = {name: value for name, value in vars(imported).items() if not name.startswith("_")}
    own = {name: value for name, value in public.items() if getattr(value, "__module__", "") == imported.__name__}
    assert own
    for name, value in own.items():
        assert f"## {name}\n" in page
        if isinstance(value, TypeVar):  # it has its class's words only
            continue
        assert (inspect.getdoc(value) or "") in page
        if not isinstance(value, type):
            continue
        for field in inspect.get_annotations(value):
            assert f"    {field}: " in page
        for method in (m for m in vars(value).values() if inspect.isfunction(m) and m.__doc__):
            if method.__qualname__ == f"{name}.{method.__name__}" and method.__module__ == imported.__name__:
                assert f"def {method.__name__}(" in page
                assert str(inspect.getdoc(method)) in page


def test_check_names_a_page_that_is_not_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs_tables, "ROOT", tmp_path)
    monkeypatch.setattr(docs_tables, "DOCS", tmp_path / "docs")
    assert docs_tables.main(["--check"]) == 1
    assert "docs/hooks.md is not what the source says" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()
    assert docs_tables.main([]) == 0
    assert docs_tables.main(["--check"]) == 0
    (tmp_path / "docs" / "contracts" / "kv.md").write_text("old")
    assert docs_tables.main(["--check"]) == 1
