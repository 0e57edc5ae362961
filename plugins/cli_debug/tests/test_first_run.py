"""Libraries held against what plugins recorded of them, and the run of all checks that new hardware is tried with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from srtkit.cli.main import main
from srtkit.spec.errors import DeviceAbsent, PluginNotFound, Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit_plugin_cli_debug import calls, first_run, signatures
from srtkit_plugin_cli_debug.first_run import TOO_LONG, Outcome
from tests.plugins.toys import Site

LIBRARY = '''
def norm(x: "Tensor", eps: float) -> None: ...


def norm(x: "Tensor", *, eps: float = 1e-5, out: "Tensor | None" = None) -> None:
    """The last definition counts."""
'''
NORM = "toy/ops.py:norm"
NOW = "(x, *, eps=1e-05, out=None)"
PLUGIN = "ops:toy-library"
VERSIONS = {"1.0": {NORM: "(x, eps)"}, "2.0": {NORM: NOW}}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table of a plugin that calls a library; the plugin's module cannot be imported, and need not be."""
    site = Site(tmp_path / "site")
    site.add("toy-calls", {"srtkit.ops.v1": {"toy-library": "toy_calls"}}, {})
    monkeypatch.syspath_prepend(site.path)
    file = site.path / "toy_calls" / signatures.FILE
    file.parent.mkdir()
    file.with_name("__init__.py").write_text("raise SystemExit")
    file.write_text(json.dumps({"distribution": "toy-library", "versions": VERSIONS}))
    return file


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The library's source."""
    folder = tmp_path / "library"
    (folder / "toy").mkdir(parents=True)
    (folder / "toy" / "ops.py").write_text(LIBRARY)
    return folder


def test_the_source_is_read_without_an_import(library: Path) -> None:
    assert signatures.of_folder(library, [NORM, "toy/ops.py:gone", "toy/gone.py:norm"]) == {NORM: NOW}


def test_a_library_is_like_one_of_the_recorded(table: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "signatures", PLUGIN, "--source", str(library)]) == 0
    assert "1 functions, all as in 2.0" in capsys.readouterr().out


def test_a_library_that_has_changed(table: Path, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table.write_text(
        json.dumps({"distribution": "toy-library", "versions": {"1.0": {NORM: "(x, eps)", "a.py:b": "()"}}})
    )
    assert main(["debug", "signatures", PLUGIN, "--source", str(library)]) == 1
    said = capsys.readouterr().out
    assert f"{NORM}{NOW}, recorded (x, eps)" in said
    assert "a.py:b is not there" in said


def test_a_known_version_is_held_to_its_own_record(table: Path, library: Path) -> None:
    found = signatures.table_of(PLUGIN)
    assert found is not None
    nearest, lines = found.nearest(library, "1.0")
    assert (nearest, len(lines)) == ("1.0", 1)


def test_what_cannot_be_compared_is_said(table: Path) -> None:
    with pytest.raises(DeviceAbsent, match="toy-library is not installed"):
        signatures.check(PLUGIN, None)
    with pytest.raises(Unsupported, match=r"ships no signatures\.json"):
        signatures.check("attention:torch", None)
    with pytest.raises(Unsupported, match=r"ships no calls\.safetensors"):
        calls.check("attention:torch", "cpu")
    with pytest.raises(PluginNotFound):
        calls.check("ops:gone", "cpu")


# --- recorded calls


def _double(x: Tensor, total: Tensor, counts: Tensor, scale: tuple[float, ...], work: Tensor) -> Tensor:
    total.add_(x)
    work.fill_(7)
    return x * scale[0] + counts.sum()


def test_a_call_is_recorded_and_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Strided arguments, one that is given twice, one that is scratch, NaN that is not used."""
    wide, shared = torch.arange(12.0).view(3, 4), torch.ones(3, 2)
    wide[0, 3] = float("nan")
    given = {"x": wide[:, :2], "total": shared, "counts": shared, "scale": (2.0, 1.0), "work": torch.zeros(2)}
    call, returned = calls.record("toy_library:double", _double, given, scratch=("work",))
    assert torch.equal(returned, wide[:, :2] * 2 + shared.sum())
    assert set(call.results) == {"return", "total", "counts"}
    calls.save([call], tmp_path / calls.FILE)
    (loaded,) = calls.load(tmp_path / calls.FILE)
    assert loaded.tensors["total"] is loaded.tensors["counts"]
    assert loaded.plain == {"scale": (2.0, 1.0)}
    cpu = torch.device("cpu")
    assert loaded.play(_double, cpu) == {"return": 0.0, "total": 0.0, "counts": 0.0}

    def wrong(**arguments: Any) -> Tensor:
        return _double(**arguments | {"x": arguments["x"] + float("nan")})

    assert loaded.play(wrong, cpu)["return"] == float("inf")
    assert loaded.play(lambda **one: _double(**one) * 1.25, cpu)["return"] == pytest.approx(0.25)

    monkeypatch.setattr(calls, "file_of", lambda part, name: tmp_path / name)
    assert calls.check(PLUGIN, "cpu") == 1
    assert "failed   toy_library:double: ModuleNotFoundError" in capsys.readouterr().out
    module = types.ModuleType("toy_library")
    vars(module)["double"] = _double
    monkeypatch.setitem(sys.modules, "toy_library", module)
    assert calls.check(PLUGIN, "cpu") == 0
    assert "ok       toy_library:double return: relative error 0, limit" in capsys.readouterr().out


# --- the whole run


def test_without_the_device_it_refuses() -> None:
    if torch.version.hip is not None and torch.cuda.is_available():
        pytest.skip("the device is here")
    with pytest.raises(DeviceAbsent, match="platform:rocm: its device is not here"):
        first_run.run("rocm", {}, 2, Path("unwritten"), 1)
    assert not Path("unwritten").exists()


def test_the_steps_are_commands_of_srt() -> None:
    steps = [" ".join(one) for one in first_run.commands("rocm", ["attention:aiter", "ops:triton"], 2)]
    assert steps == [
        "doctor",
        "debug signatures attention:aiter",
        "debug calls attention:aiter --platform rocm",
        "conformance run platform:rocm --device rocm --level 2 --patience 10",
        "conformance run attention:aiter --device rocm --level 2 --patience 10",
        "conformance run ops:triton --device rocm --level 2 --patience 10",
    ]


def test_what_is_not_installed_is_said_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(PluginNotFound, match="attention:gone"):
        first_run.run("cpu", {"attention": "gone"}, 0, tmp_path / "report.md", 1)
    assert not [*tmp_path.iterdir()]


def test_the_report_tells_what_each_step_said() -> None:
    facts = DeviceFacts("rocm", "MI300X", "gfx942", count=8)
    long = "\n".join(map(str, range(100)))
    outcomes = [
        Outcome(["doctor"], 0, 1.2, "fine"),
        Outcome(["debug", "calls"], -6, 3.0, long),
        Outcome(["x"], 1, 2, ""),
    ]
    report = first_run.text(facts, {"torch": "2.11"}, outcomes)
    assert report.startswith("# First run on 8 x MI300X (rocm gfx942)\n\ntorch 2.11\n")
    assert (
        "| `srt doctor` | passed | 1 |\n| `srt debug calls` | ended by signal 6 | 3 |\n| `srt x` | failed (1)" in report
    )
    assert "```\n… 40 lines before\n40\n" in report


def test_a_step_that_hangs_is_ended_and_the_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"
    line = ["debug", "first-run", "--platform", "cpu", "--attention", "torch", "--seconds", "0.01"]
    assert main([*line, "--report", str(report)]) == 1
    said = capsys.readouterr().out
    assert "srt conformance run attention:torch --device cpu --level 2 --patience 10\n  took too long" in said
    assert "0 of 5 steps passed" in said
    assert report.read_text().count("took too long") == 5
    assert TOO_LONG == 124


def test_what_is_ended_is_found_in_other_sessions_too() -> None:
    """As the suite's children are: a process group would leave them."""
    child = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        found = first_run.family(process.pid)
        for one in found:
            os.kill(one, signal.SIGKILL)
    assert found == [process.pid, grandchild]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_run_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps for real, with the mandatory checks."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PYTHONPATH", raising=False)  # where other tests have plugins that fail
    report = tmp_path / "report.md"
    line = ["debug", "first-run", "--platform", "cpu", "--attention", "torch", "--ops", "cpu", "--level", "1"]
    assert main([*line, "--report", str(report)]) == 0, report.read_text()
    assert report.read_text().count("| passed |") == 5
    assert os.listdir(tmp_path) == ["report.md"]
