"""`srt doctor`: each check against an installation that has the fault it looks for."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from srtkit.cli import doctor
from srtkit.cli.doctor import Finding
from srtkit.plugins.registry import discover
from tests.cli.conftest import Result
from tests.plugins.toys import Site

Srt = Callable[..., Result]


def of(findings: object, subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]  # type: ignore[attr-defined]


def editable(site: Site, folder: Path, pyproject: str | None) -> None:
    """An editable install of `folder`, whose metadata has the entry point toy."""
    folder.mkdir()
    site.add("my-plugin", {"srtkit.attention.v1": {"toy": "toy_module"}, "console_scripts": {"x": "y"}}, {})
    origin = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (site.path / "my_plugin-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))
    if pyproject is not None:
        (folder / "pyproject.toml").write_text(pyproject)


def entry_points(*names: str) -> str:
    lines = "".join(f'{name} = "toy_module"\n' for name in names)
    head = '[project]\nname = "my-plugin"\n[project.scripts]\nx = "y"\n'
    return f'{head}[project.entry-points."srtkit.attention.v1"]\n{lines}'


@pytest.mark.usefixtures("srt")
class TestEditables:
    """The site folder alone is looked at."""

    def test_an_unchanged_one_is_silent(self, site: Site, tmp_path: Path) -> None:
        editable(site, tmp_path / "with space", entry_points("toy"))
        assert list(doctor._editables()) == []

    def test_new_entry_points_want_a_reinstall(self, site: Site, tmp_path: Path) -> None:
        folder = tmp_path / "with space"
        editable(site, folder, entry_points("toy", "toy2"))
        (finding,) = doctor._editables()
        assert (finding.verdict, finding.subject) == ("fail", "my-plugin")
        assert "srtkit.attention.v1: toy2" in finding.detail
        assert f"pip install -e {folder}" in finding.detail

    def test_a_folder_that_is_gone(self, site: Site, tmp_path: Path) -> None:
        editable(site, tmp_path / "gone", None)
        (finding,) = doctor._editables()
        assert finding.verdict == "warn"
        assert "is gone" in finding.detail


def test_the_subtitle_package_is_noticed_where_it_owns_the_script(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "srt").write_text("from srt_tools import main")
    assert list(doctor._script()) == []
    site.add("srt", {}, {}, version="3.5.3")
    (finding,) = doctor._script()
    assert finding.verdict == "warn"
    assert "`srtkit` is the same command" in finding.detail
    (tmp_path / "srt").write_text("from srtkit.cli.main import main")
    assert list(doctor._script()) == []


def test_duplicates_other_majors_and_broken_metadata_are_reported(site: Site) -> None:
    for dist in ("one", "two"):
        site.add(dist, {"srtkit.attention.v1": {"fast": "toy_x"}}, {})
    site.plugin("attention", "late", "", major=2)
    (site.path / "broken-1.dist-info").mkdir()
    (site.path / "broken-1.dist-info" / "entry_points.txt").write_text("[srtkit.attention.v1]\nx = y\n")
    text = str(list(doctor._metadata(discover([str(site.path)]))))
    for words in ("one 1.0 and two 1.0", "speaks attention v2", "broken metadata"):
        assert words in text


def test_light_modules_are_loaded_strictly_each_in_its_own_process(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    site.plugin("attention", "fine")
    site.plugin("attention", "heavy", extra="import torch")
    site.plugin("attention", "patches", extra="import srtkit.spec.kv as m; m.negotiate = print")
    site.add("fake-torch", {}, {"torch": "class Tensor: pass"})
    findings = list(doctor._light_modules(discover([str(site.path)])))
    (fine,) = of(findings, "attention:fine")
    assert fine.verdict == "ok"
    (heavy,) = of(findings, "attention:heavy")
    assert "its light module imports torch" in heavy.detail
    (patches,) = of(findings, "attention:patches")
    assert "replaced srtkit.spec.kv.negotiate" in patches.detail
    assert not [name for name in sys.modules if name.startswith("toy_")]


def test_missing_libraries_are_named_with_the_set_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = {finding.subject: finding for finding in doctor._versions()}
    assert findings["python"].verdict == "ok"
    assert findings["torch"].verdict == "warn"
    assert "srtkit-core[cpu]" in findings["torch"].detail


def test_too_little_disk_or_shared_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SHARED_MEMORY_MIB", 1 << 40)
    (finding,) = of(doctor._machine(), "/dev/shm")
    assert finding.verdict == "fail"


def test_the_exit_code_says_whether_something_failed(site: Site, srt: Srt, monkeypatch: pytest.MonkeyPatch) -> None:
    done = srt("doctor")
    assert done.code == 0, done.out
    assert "python" in done.out
    site.plugin("attention", "broken", "import no_such_library")
    monkeypatch.setenv("PYTHONPATH", str(site.path))
    done = srt("doctor")
    assert done.code == 1
    assert "fail  attention:broken" in done.out
