"""The tool writes nothing it should not, and says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import new_plugin
from tools.dists import ROOT


def test_the_folder_is_named_as_those_of_the_house(tmp_path: Path) -> None:
    folder = new_plugin.create("prefix_cache", "my_chip2", tmp_path / "a" / "b")
    assert folder == tmp_path / "a" / "b" / "cache_my_chip2"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert 'name = "srtkit-plugin-cache-my-chip2"' in (folder / "pyproject.toml").read_text()
    assert "class MyChip2Cache" in (folder / "srtkit_plugin_cache_my_chip2" / "cache.py").read_text()


@pytest.mark.parametrize("name", ["", "My", "9lives", "a--b", "-a", "a b", "../a", "a.b"])
def test_a_name_that_would_not_work_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(new_plugin.Refused, match="no plugin name"):
        new_plugin.create("attention", name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_kind_without_a_skeleton_is_refused_with_those_there_are(tmp_path: Path) -> None:
    for kind in ("recurrent", "cache", ".."):
        with pytest.raises(new_plugin.Refused, match="there are: platform, attention, "):
            new_plugin.create(kind, "mychip", tmp_path)


def test_what_is_there_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cli_hi").mkdir()
    assert new_plugin.main(["cli", "hi", "--dest", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert list((tmp_path / "cli_hi").iterdir()) == []


def test_it_prints_what_comes_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new_plugin.main(["ops", "fast", "--dest", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert f"pip install --editable {tmp_path / 'ops_fast'}\n" in said
    assert "srt plugins show ops:fast\n" in said


@pytest.mark.parametrize(("more", "ending"), [(["DEST=/tmp/x"], " --dest /tmp/x"), ([], "")])
def test_make_calls_it(more: list[str], ending: str) -> None:
    make = ["make", "--no-print-directory", "--dry-run", "new-plugin", "KIND=attention", "NAME=mychip", *more]
    said = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.rstrip().endswith(f"-m tools.new_plugin attention mychip{ending}")
