"""Which plugins are certified, what the page says of them, and that a certificate is only replaced by a better run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.catalogue import KINDS
from srtkit_conformance.certificate import Standing, State
from srtkit_conformance.digest import certificate_path
from srtkit_conformance.report import read_report
from tools import certificates, certify
from tools.dists import plugins

CHUNK = "prefix_cache:chunk"


def test_every_plugin_of_a_kind_that_has_checks_is_certified_where_it_is_looked_for() -> None:
    offered = {
        (dist.name, group.split(".")[1], name)
        for dist in plugins()
        for group, names in dist.entry_points.items()
        for name in names
    }
    places = {f"{kind}:{name}": certificate_path(dist, kind, name) for dist, kind, name in offered if kind in KINDS}
    assert certificates.ours() == places


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of two plugins without certificates."""
    for dist in plugins():
        if dist.folder.name in ("cache_chunk", "cache_radix"):
            folder = tmp_path / "plugins" / dist.folder.name
            (folder / dist.package).mkdir(parents=True)
            shutil.copy(dist.folder / "pyproject.toml", folder)
    return tmp_path


def test_the_page_says_who_has_none(checkout: Path) -> None:
    page = certificates.page(checkout)
    assert "Without a certificate: prefix_cache:chunk, prefix_cache:radix.\n" in page
    assert "## prefix_cache" not in page


def test_a_certificate_holds_for_the_checks_that_it_has(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = certificates.ours(checkout)[CHUNK]
    assert certify.certify(CHUNK, place, level=0)
    monkeypatch.setattr(certify, "standing_of", lambda kind, name: Standing("valid", "as if it lay in the package"))
    assert certify.holds(CHUNK, place, level=0)
    assert not certify.holds(CHUNK, place, level=1)
    monkeypatch.setattr(certify, "standing_of", lambda kind, name: Standing("other files", "edited since"))
    assert not certify.holds(CHUNK, place, level=0)


def test_a_plugin_whose_device_is_not_here_is_passed_over(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(certify.DEVICES, CHUNK, "cpu:99")
    place = certificates.ours(checkout)[CHUNK]
    assert certify.certify(CHUNK, place, level=1)
    assert not place.exists()
    assert "its device is not here" in capsys.readouterr().out


def test_platforms_that_every_machine_has_are_certified_through_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others at level 2, or the highest of their kind; what the command line says holds for all. All are run."""
    asked: dict[str, int] = {}
    monkeypatch.setattr(certify, "certify", lambda part, place, level: asked.update({part: level}) or True)
    monkeypatch.setattr(certify, "PAGE", tmp_path / "README.md")
    assert certify.main(["--again"]) == 0
    assert asked.keys() == certificates.ours().keys()
    others = {part: level for part, level in asked.items() if level != 2}
    of_one_level = {part: 1 for part in asked if part.startswith(("kv_store:", "routes:"))}
    assert others == of_one_level | {f"platform:{name}": 3 for name in certify.EVERYWHERE}
    assert certify.main(["--again", "--level", "1"]) == 0
    assert set(asked.values()) == {1}


def test_what_does_not_hold_is_told_and_what_needs_another_machine_is_not_missed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states: dict[str, State] = {
        CHUNK: "other files",
        "attention:torch": "valid",
        "ops:cpu": "none",
        "ops:triton": "none",
    }
    monkeypatch.setattr(certify, "standing_of", lambda kind, name: Standing(states[f"{kind}:{name}"], "words"))
    monkeypatch.setattr(certificates, "ours", lambda: dict.fromkeys(states, Path("nowhere")))
    assert certify.main(["--current"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{CHUNK}: other files, words",
        "ops:cpu: none, words",
        "certificates: 2 of 4 do not hold",
    ]
    assert certify.main(["--current", "attention:torch", "ops:triton"]) == 0


def test_a_run_fills_the_page(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = certificates.ours(checkout)[CHUNK]
    assert certify.certify(CHUNK, place, level=0)
    assert capfd.readouterr().out == f"{CHUNK}: level 0 reached, level 0 asked\n"
    report, page = read_report(place), certificates.page(checkout)
    row = next(line for line in page.splitlines() if line.startswith(f"| {CHUNK} |"))
    spoken = f"prefix_cache/{CONTRACTS['prefix_cache'].version}"
    for words in ("0 of 0", "cpu:0, ", spoken, report.started[:10], report.plugin.digest[:16]):
        assert words in row
    assert "Without a certificate: prefix_cache:radix.\n" in page
    assert "| check | level | clause | chunk |\n" in page
    for one in report.checks:
        assert f"| `{one.id}` | {one.level} | {one.clause} | {one.verdict} |\n" in page


def test_a_plugin_that_fails_keeps_the_certificate_it_had(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "conformance-prefix_cache-nobody.json"
    place.write_text("as before")
    assert not certify.certify("prefix_cache:nobody", place)
    assert place.read_text() == "as before"
    said = capfd.readouterr().err
    assert "no installed distribution offers it" in said
    assert said.endswith("prefix_cache:nobody is not certified: exit code 3\n")


def test_a_plugin_of_others_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        certify.main(["attention:mychip"])
    assert "not among the plugins of this repository that are certified: attention:mychip" in capsys.readouterr().err
