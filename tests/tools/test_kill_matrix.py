"""The page of kill matrices: all kinds in the suite's order under one head, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from srtkit_conformance.catalogue import KINDS, LOADING, SERVER
from srtkit_conformance.matrix import matrix_page
from srtkit_conformance.selftest import Proof
from tools.kill_matrix import page


def test_kinds_are_in_order_under_one_head(tmp_path: Path) -> None:
    kinds = [LOADING, *KINDS, SERVER]
    for kind in reversed(kinds):
        (tmp_path / f"kill-matrix-{kind}.md").write_text(matrix_page([Proof(kind, (f"{kind}.check",))]))
    lines = page(tmp_path).splitlines()
    assert [line for line in lines if line.startswith("#")] == ["# Kill matrix", *(f"## {kind}" for kind in kinds)]
    assert "The named killer of no mutant: `check`." in lines


def test_a_kind_that_was_not_proved_makes_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="kill-matrix-loading"):
        page(tmp_path)
