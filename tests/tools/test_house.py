"""House rules that no linter has: how a file opens, and no probing of objects."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.dists import ROOT, find

FILES = [path for dist in find() for path in sorted((dist.folder / dist.package).rglob("*.py"))]
TOOLS = sorted((ROOT / "tools").glob("*.py"))


def test_the_list_of_files_is_not_empty() -> None:
    assert len(FILES) > 20


@pytest.mark.parametrize("path", [*FILES, *TOOLS], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_file_opens_with_a_docstring_and_probes_nothing(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    assert ast.get_docstring(tree) or not tree.body, "say in a few lines what the file knows and does not know"
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "hasattr"]
    assert not names, f"hasattr in line {names[0].lineno}"
