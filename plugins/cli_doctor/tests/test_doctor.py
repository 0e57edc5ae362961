"""`srt doctor`: each check against an installation that has the fault it looks for."""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from srtkit.plugins.registry import discover
from srtkit.spec.platform import Finding
from srtkit_plugin_cli_doctor import findings as doctor
from tests.cli.conftest import Result
from tests.plugins.toys import Site

Srt = Callable[..., Result]


def of(findings: object, subject: str) -> list[Finding]:
    return [finding for finding in findings if finding.subject == subject]  # type: ignore[attr-defined]


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
    text = str(list(doctor._plugins(discover([str(site.path)]))))
    for words in ("one 1.0 and two 1.0", "speaks attention v2", "broken metadata"):
        assert words in text


DOCTOR = """
import json, sys
from srtkit_plugin_cli_doctor.findings import _plugins
from srtkit.plugins.registry import discover
print(json.dumps(list(_plugins(discover([sys.argv[1]])))))
"""


def test_every_light_module_is_loaded_under_the_rules(site: Site) -> None:
    site.plugin("attention", "fine")
    site.plugin("attention", "heavy", extra="import torch")
    site.plugin("attention", "patches", extra="import srtkit.spec.kv as m; m.negotiate = print")
    site.add("fake-torch", {}, {"torch": "class Tensor: pass"})
    findings = {subject: (verdict, detail) for verdict, subject, detail in site.answer(DOCTOR, str(site.path))}  # type: ignore[attr-defined]
    assert findings["attention:fine"] == ("ok", "loads")
    assert findings["attention:heavy"][0] == findings["attention:patches"][0] == "fail"
    assert "its light module imports torch" in findings["attention:heavy"][1]
    assert "replaced srtkit.spec.kv.negotiate" in findings["attention:patches"][1]


def test_a_platform_says_what_it_finds_and_is_to_blame_when_it_cannot(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_VISIBLE_DEVICES", "7")
    looks = """
    from srtkit.spec.platform import Finding
    PARTS |= dict(examine=lambda environment: [Finding("warn", "toys", environment["TOY_VISIBLE_DEVICES"])])
    """
    site.plugin("platform", "here", extra=looks)
    site.plugin("platform", "raises", extra="PARTS |= dict(examine=lambda environment: [][0])")
    findings = {subject: (verdict, detail) for verdict, subject, detail in site.answer(DOCTOR, str(site.path))}  # type: ignore[attr-defined]
    assert findings["platform:here"] == ("ok", "loads")
    assert findings["toys"] == ("warn", "7")
    assert findings["platform:raises"][0] == "fail"
    assert "raised IndexError" in findings["platform:raises"][1]


def test_missing_libraries_are_named_with_the_set_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    findings = {finding.subject: finding for finding in doctor._versions()}
    assert findings["python"].verdict == "ok"
    assert findings["torch"].verdict == "warn"
    assert "srtkit-core[cpu]" in findings["torch"].detail


def test_too_little_disk_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "FREE_DISK_MIB", 1 << 40)
    (finding,) = of(doctor._machine(), tempfile.gettempdir())
    assert finding.verdict == "fail"


def test_the_exit_code_says_whether_something_failed(site: Site, srt: Srt) -> None:
    site.add("srtkit-plugin-cli-doctor", {"srtkit.cli.v1": {"doctor": "srtkit_plugin_cli_doctor"}}, {})
    done = srt("doctor")
    assert done.code == 0, done.out
    assert "python" in done.out
    site.plugin("attention", "broken", "import no_such_library")
    done = srt("doctor")
    assert done.code == 1
    assert "fail  attention:broken" in done.out
