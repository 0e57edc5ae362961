"""`srt conformance`: exit codes, and what each sub-command prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conformance.tests.conftest import TOYS, Install, Srt
from srtkit_conformance import commands
from srtkit_conformance.catalogue import KINDS, Suite, suite_for
from srtkit_conformance.kits.light import REFERENCE, LightPlugin
from srtkit_conformance.mutants import loading

Capture = pytest.CaptureFixture[str]

ABORTS = """
import dataclasses
import os

import srtkit_plugin_cache_chunk as chunk
from srtkit.spec.hookspecs import hookimpl


def build(args):
    from srtkit_plugin_cache_chunk.cache import ChunkCache

    class Cache(ChunkCache):
        closed = False

        def close(self):
            if self.closed:
                print("freed twice")
                os.abort()
            self.closed = True
            super().close()

    return Cache(args)


@hookimpl
def srtkit_prefix_cache():
    return dataclasses.replace(chunk.srtkit_prefix_cache(), build=build)
"""
"""A prefix cache that ends the process when it is closed a second time."""


@pytest.fixture
def toys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands find the toy checks instead of those of the kind."""
    monkeypatch.setattr(commands, "suite_for", lambda kind: TOYS)


def test_0_when_the_level_is_met(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    files = {option: tmp_path / f"out.{option}" for option in ("report", "md", "junit")}
    options = [part for option, path in files.items() for part in (f"--{option}", path)]
    assert srt("run", "prefix_cache:chunk", "--level", 0, *options) == 0
    out = capfd.readouterr().out
    assert out.startswith("prefix_cache:chunk, srtkit-plugin-cache-chunk 0.1.0, on cpu:0")
    assert out.endswith("level 0 reached, level 0 asked\n")
    ids = [one["id"] for one in json.loads(files["report"].read_text())["checks"]]
    assert "prefix_cache.loading.light" in ids
    assert all(one in files["md"].read_text() for one in ids)
    assert [case.attrib["name"] for case in ElementTree.parse(files["junit"]).iter("testcase")] == ids


def test_1_when_a_check_fails_and_it_says_all_about_it(srt: Srt, install: Install, capfd: Capture) -> None:
    install(loading.swallows_options.make(REFERENCE))
    assert srt("run", "prefix_cache:toy", "--only", "prefix_cache.loading.options_refused") == 1
    out = capfd.readouterr().out
    assert "fail           prefix_cache.loading.options_refused" in out
    assert "accepts an option that it does not have" in out
    assert "clause: loading: an unknown option is refused" in out
    assert (
        "srt conformance run prefix_cache:toy --device cpu --seed 0 --only prefix_cache.loading.options_refused" in out
    )


def test_1_when_the_plugin_aborts_in_the_middle_of_a_run(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That check has failed, those behind it are run, and the report is written."""
    install(LightPlugin(ABORTS, f"{REFERENCE.metadata}Requires-Dist: srtkit-plugin-cache-chunk\n"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    command = [sys.executable, "-m", "srtkit", "conformance", "run", "prefix_cache:toy", "--level", "1"]
    done = subprocess.run(
        [*command, "--report", str(tmp_path / "out.json")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    checks = json.loads((tmp_path / "out.json").read_text())["checks"]
    ids = [one.id for one in suite_for("prefix_cache").checks() if one.level <= 1]
    assert [one["id"] for one in checks] == ids
    assert [one["id"] for one in checks if one["verdict"] == "fail"] == ["prefix_cache.close"]
    assert ids[-1] != "prefix_cache.close"
    assert "the process ended by signal SIGABRT" in done.stdout
    assert "freed twice" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("run", "attention"), "not of the form KIND:NAME"),
        (("run", "cli:chat"), "no kind that it certifies"),
        (("run", "loading:toy"), "no kind that it certifies"),
        (("run", "prefix_cache:chunk", "--only", "prefix_cache.nothing"), "has no check"),
        (("run", "prefix_cache:chunk", "--device", "cpu:one"), "not of the form PLATFORM:INDEX"),
        (("run", "prefix_cache:chunk", "--waivers", "/nonexistent/waivers.toml"), "No such file"),
        (("list", "teapot"), "no kind that it certifies"),
        (
            ("run", "prefix_cache:chunk", "--only", "prefix_cache.metadata"),
            'did you mean "prefix_cache.loading.metadata"?',
        ),
        (("explain", "prefix_cache.nothing"), "has no check"),
        (("explain", "prefix_cache.limits"), 'did you mean "prefix_cache.limit"?'),
        (("badge", "/nonexistent/out.json"), "no report"),
        (("selftest", "--kind", "loading", "--mutant", "nobody"), "no mutant"),
    ],
)
def test_2_for_what_the_user_got_wrong(srt: Srt, capfd: Capture, arguments: tuple[str, ...], why: str) -> None:
    assert srt(*arguments) == 2
    assert why in capfd.readouterr().err


def test_3_for_a_plugin_that_is_not_installed_and_how_a_folder_is(srt: Srt, capfd: Capture) -> None:
    assert srt("run", "prefix_cache:mine") == 3
    assert "python -m pip install --editable FOLDER" in capfd.readouterr().err


def test_a_reader_that_has_gone_is_no_mistake_of_the_user(srt: Srt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core's command line ends then, without a word."""

    def gone(*words: object, **how: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    with pytest.raises(BrokenPipeError):
        srt("list")


@pytest.mark.usefixtures("toys_only")
def test_2_for_a_level_that_has_no_checks(srt: Srt, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "suite_for", lambda kind: Suite(kind, ("srtkit_conformance.checks.loading",)))
    assert srt("run", "prefix_cache:chunk", "--level", 1) == 2
    assert "its highest level is 0" in capfd.readouterr().err


@pytest.mark.parametrize("module", [TOYS.check_modules[0], "srtkit_conformance.checks.loading"])
def test_without_a_level_it_is_the_highest_that_has_checks(
    srt: Srt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    suite = Suite("prefix_cache", (module,))
    monkeypatch.setattr(commands, "suite_for", lambda kind: suite)
    srt("run", "prefix_cache:chunk", "--report", tmp_path / "out.json")
    ran = {one["level"] for one in json.loads((tmp_path / "out.json").read_text())["checks"]}
    assert ran == {one.level for one in suite.checks()}


def test_without_a_level_nothing_is_soaked(srt: Srt, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(commands, "_certify", lambda subject, suite, arguments: asked.append(arguments.level) or 0)
    srt("run", "prefix_cache:chunk")
    srt("run", "recurrent:torch")
    assert asked == [3, 2]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (None, "no installed distribution offers it"),
        ("import no_such_library", "No module named 'no_such_library'"),
        (loading.other_major.make(REFERENCE).source, "speaks prefix_cache 2.0"),
        (REFERENCE.edited("pages: int = Field(1,", "pages: int = Field(").source, "ValidationError"),
    ],
)
def test_3_when_the_plugin_cannot_be_loaded(
    srt: Srt, install: Install, capfd: Capture, source: str | None, why: str
) -> None:
    if source is not None:
        install(LightPlugin(source=source))
    assert srt("run", "prefix_cache:toy", "--level", 0) == 3
    assert why in capfd.readouterr().err


def test_5_when_the_device_is_not_here(srt: Srt, capfd: Capture) -> None:
    assert srt("run", "prefix_cache:chunk", "--device", "cpu:99") == 5
    assert "has no device 99 here" in capfd.readouterr().err


def test_level_0_needs_no_device(srt: Srt, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    assert srt("run", "prefix_cache:chunk", "--device", "cpu:99", "--level", 0, "--report", report) == 0
    assert json.loads(report.read_text())["device"]["name"] == "absent"


@pytest.mark.usefixtures("toys_only")
@pytest.mark.parametrize("name", ["nonsense", "at_fault"])
def test_4_when_the_suite_is_at_fault(srt: Srt, capfd: Capture, name: str) -> None:
    assert srt("run", "prefix_cache:chunk", "--only", f"prefix_cache.toy_{name}") == 4
    assert "the suite is at fault" in capfd.readouterr().err


@pytest.mark.usefixtures("toys_only")
def test_4_when_the_suite_itself_raises(srt: Srt, capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "suite_for", lambda kind: Suite(kind, ("no_such_module",)))
    assert srt("list", "prefix_cache") == 4
    assert "No module named 'no_such_module'" in capfd.readouterr().err


@pytest.mark.usefixtures("toys_only")
def test_patience_is_times_a_checks_limit(srt: Srt, capfd: Capture) -> None:
    assert srt("run", "prefix_cache:chunk", "--only", "prefix_cache.toy_hangs", "--patience", 0.5) == 1
    assert "did not end within 0.5 s" in capfd.readouterr().out


@pytest.mark.usefixtures("toys_only")
def test_a_waived_failure_keeps_the_exit_code(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / "waivers.toml"
    file.write_text('[[waiver]]\nid = "prefix_cache.toy_fails"\nreason = "a known failure"\nexpires = 2999-01-01\n')
    only = ("--only", "prefix_cache.toy_fails", "--waivers", file)
    assert srt("run", "prefix_cache:chunk", *only) == 0
    assert "waived: a known failure (until 2999-01-01)" in capfd.readouterr().out


@pytest.mark.usefixtures("toys_only")
def test_replay_runs_one_check_as_the_report_says(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    report = tmp_path / "out.json"
    first = ("--only", "prefix_cache.toy_alone", "--only", "prefix_cache.toy_fails")
    assert srt("run", "prefix_cache:chunk", *first, "--seed", 5, "--report", report) == 1
    capfd.readouterr()
    assert srt("replay", report, "prefix_cache.toy_alone") == 0
    out = capfd.readouterr().out
    assert "seed 5" in out.splitlines()[0]
    assert "toy_fails" not in out
    assert srt("replay", report, "prefix_cache.toy_fails") == 1


@pytest.mark.usefixtures("toys_only")
def test_replay_says_what_is_not_as_it_was(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    path = tmp_path / "out.json"
    srt("run", "prefix_cache:chunk", "--only", "prefix_cache.toy_passes", "--report", path)
    report = json.loads(path.read_text())
    report["plugin"]["digest"], report["suite"]["version"] = "0" * 64, "0.0.1"
    path.write_text(json.dumps(report))
    assert srt("replay", path, "prefix_cache.toy_passes") == 0
    out = capfd.readouterr().out
    assert "note: srtkit-plugin-cache-chunk has other files than it had" in out
    assert "note: the report was written by srtkit-conformance 0.0.1" in out


@pytest.mark.usefixtures("toys_only")
def test_diff_ends_with_1_when_it_became_worse(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    srt("run", "prefix_cache:chunk", "--level", 1, "--report", good)
    report = json.loads(good.read_text())
    report["checks"][0]["verdict"], report["level_reached"] = "fail", -1
    bad.write_text(json.dumps(report))
    capfd.readouterr()
    assert srt("diff", good, good) == 0
    assert capfd.readouterr().out == "no difference\n"
    assert srt("diff", good, bad) == 1
    assert capfd.readouterr().out == "level: 1 → -1\nprefix_cache.toy_passes: pass → fail\n"
    assert srt("diff", bad, good) == 0


@pytest.mark.usefixtures("toys_only")
def test_badge(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    report = tmp_path / "out.json"
    srt("run", "prefix_cache:chunk", "--level", 1, "--report", report)
    capfd.readouterr()
    assert srt("badge", report) == 0
    assert json.loads(capfd.readouterr().out)["message"].startswith("1.0 · L1 · ")


@pytest.mark.parametrize("kind", KINDS)
def test_every_check_has_a_clause_an_explanation_and_an_id_of_its_kind(kind: str, srt: Srt, capfd: Capture) -> None:
    assert srt("list", kind) == 0
    listed = capfd.readouterr().out
    for one in suite_for(kind).checks():
        assert one.id.startswith(f"{kind}.")
        assert one.id in listed
        assert one.clause
        assert one.explain.strip()


def test_explain_gives_clause_and_causes(srt: Srt, capfd: Capture) -> None:
    assert srt("explain", "attention.loading.light") == 0
    out = capfd.readouterr().out
    assert "imports neither torch nor a vendor library" in out
    assert "Move it into the module" in out


def test_selftest_of_one_mutant(srt: Srt, tmp_path: Path, capfd: Capture) -> None:
    matrix = tmp_path / "matrix.md"
    options = ("--kind", "loading", "--mutant", "prints", "--seeds", 1, "--matrix", matrix)
    assert srt("selftest", *options) == 0
    out = capfd.readouterr().out.splitlines()
    assert out[-1] == "1 mutants, 0 legal variants, 0 faults"
    assert "prints  ●" in out
    assert "| prints | prints a banner when it is imported | `silent` |" in matrix.read_text()


def test_the_light_module_is_light() -> None:
    """`srt --help` and `srt conformance --help` import it: neither pytest nor hypothesis nor torch."""
    code = "import sys, srtkit_conformance; print({'pytest', 'hypothesis', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_it_is_a_sub_command_of_srt() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "srtkit", "conformance", "--help"], capture_output=True, text=True, check=True
    )
    assert "exit codes: 0 the level is met" in done.stdout
