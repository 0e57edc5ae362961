"""The three ways to the author kit: `srt plugin new`, `srt plugins new`, `make new-plugin`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from srtkit.cli.main import main
from tools.dists import ROOT


@pytest.mark.parametrize("words", [("plugin", "new"), ("plugins", "new")])
def test_srt_calls_it(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "ops", "fast", "--dest", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'ops_fast'}: ops:fast, which works as it is")
    assert main([*words, "ops", "fast", "--dest", str(tmp_path)]) == 10
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "place"), [(["DEST=/tmp/x"], "/tmp/x"), ([], "plugins")])
def test_make_calls_it(more: list[str], place: str) -> None:
    make = ["make", "--no-print-directory", "--dry-run", "new-plugin", "KIND=attention", "NAME=mychip", *more]
    said = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.rstrip().endswith(f"/srt plugin new attention mychip --dest {place}")
