"""Five planted kernel faults: the shadow names layer, row and head, and a replay elsewhere finds one short row."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from srtkit.cli.main import main
from srtkit.spec.errors import ConfigError, PluginNotFound
from srtkit_plugin_attention_shadow.dump import load
from tests.plugins.toys import Site

from .conftest import FAULTS, Shadowed, logged, shadowed_tokens

REPLAYS = """
import sys
from srtkit.cli.main import main
for dump in sys.argv[1:]:
    print("=" * 9, main(["debug", "replay", dump]))
"""
LOOKS_LIKE = {
    "page-swapped": "not read at all: keys 16",
    "window-off": "one too many",
    "tail-read": "the last page's tail is read",
    "wrong-head": "instead of",
    "stale-plan": "something of an earlier step stays in the plan",
}


@pytest.fixture(scope="session")
def replayed(shadowed: Mapping[str, Shadowed], site: Site) -> Mapping[str, str]:
    """What a process that has the plugins, and not the model, prints of each dump."""
    dumps = [str(shadowed[fault].dump) for fault in FAULTS]
    done = subprocess.run([sys.executable, "-c", REPLAYS, *dumps], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    said = done.stdout.split("=" * 9 + " 1\n")
    assert len(said) == len(FAULTS) + 1, done.stdout + done.stderr
    return dict(zip(FAULTS, said, strict=False))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_report_names_layer_row_and_head(shadowed: Mapping[str, Shadowed], fault: str) -> None:
    said = shadowed[fault].said
    assert f"attention:{fault} differs from attention:torch in layer 0" in said
    assert re.search(r"row \d+ \(slot \d+\), head \d, position \d+: relative error", said)


def test_the_report_names_a_later_layer_where_only_that_is_compared(site: Site, model: Path, tmp_path: Path) -> None:
    options = {"every": 1, "reports": 1, "layers": [1], "folder": str(tmp_path / "dumps")}
    with logged() as said:
        shadowed_tokens(model, tmp_path, "page-swapped", options)
    assert "attention:page-swapped differs from attention:torch in layer 1" in "\n".join(said)
    (dump,) = (tmp_path / "dumps").iterdir()
    assert load(dump).meta.layer == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_replay_without_the_model_reduces_it_to_one_short_row(
    shadowed: Mapping[str, Shadowed], replayed: Mapping[str, str], fault: str
) -> None:
    print(shadowed[fault].said)
    print(replayed[fault])
    small = load(shadowed[fault].dump.with_name(f"{shadowed[fault].dump.stem}-min.safetensors"))
    assert small.rows == 1 and len(small.q) == 1
    assert int(small.context.max()) <= 64
    assert small.meta.findings
    assert LOOKS_LIKE[fault] in replayed[fault]


def test_the_script_beside_the_smallest_dump_plays_it(
    shadowed: Mapping[str, Shadowed], replayed: Mapping[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    dump = shadowed["stale-plan"].dump
    runpy.run_path(str(dump.with_name(f"{dump.stem}-min.py")))
    said = capsys.readouterr().out
    assert float(re.findall(r"\d+\.\d+", said)[0]) > 0.01, said


def test_a_backend_without_the_fault_agrees(
    shadowed: Mapping[str, Shadowed], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["debug", "replay", str(shadowed["tail-read"].dump), "--attention", "torch"]) == 0
    assert "they agree: the largest relative error is 0" in capsys.readouterr().out


def test_show_and_refusals(shadowed: Mapping[str, Shadowed], capsys: pytest.CaptureFixture[str]) -> None:
    dump = str(shadowed["window-off"].dump)
    assert main(["debug", "show", dump]) == 0
    said = capsys.readouterr().out
    assert "attention:window-off (toy-window-off 1.0)" in said and "window 24" in said and "relative error" in said
    assert main(["debug", "replay", dump, "--attention", "none-such"]) == PluginNotFound.exit_code
    assert main(["debug", "replay", dump, "--set", "fats=1", "--attention", "torch"]) == ConfigError.exit_code
    assert "its options: fast" in capsys.readouterr().err
