"""`srt explain` of the quick start: wiring and memory, without torch and without reading a weight."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from srtkit.cli.main import main
from srtkit_plugin_cpu_native import LIBRARY

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"

EXPLAIN = """
import sys
from srtkit.cli.main import main
code = main(["explain", "--config", *sys.argv[1:]])
assert "torch" not in sys.modules, "explaining needs no torch"
sys.exit(code)
"""


@pytest.mark.model
def test_the_quickstart_is_explained_before_any_weight_is_read() -> None:
    command = [sys.executable, "-c", EXPLAIN, str(QUICKSTART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    chosen = "attention:cpu-native" if LIBRARY.exists() else "attention:torch"
    for words in (f"page 16, {chosen}\n", "prefix_cache:radix", "model_loader:gguf", "KV pages", "wiring plan"):
        assert words in done.stdout


@pytest.mark.model
def test_a_plan_that_the_machine_cannot_hold_is_refused_with_its_figures() -> None:
    sets = ["--set", "memory.kv_gib=100000", "--set", "scheduler.max_running=200000"]
    command = [sys.executable, "-c", EXPLAIN, str(QUICKSTART), *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 40
    assert "do not fit" in done.stderr and "kv_gib" in done.stderr


@pytest.mark.model
def test_what_a_setting_does_not_get_is_said_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--set", "memory.kv_gib=100", "--set", "model.max_context=1000000", "--set", "scheduler.max_running=2"]
    assert main(["explain", str(QUICKSTART), *sets]) == 0
    said = capsys.readouterr().out
    assert "note: model.max_context 1,000,000 is beyond the model's 8,192, which holds" in said
    whole = "all that 2 sequences of 8,192 tokens can fill (memory.kv_gib asks for 100.00 GiB)"
    assert re.search(r"note: KV pages take 0\.\d\d GiB, " + re.escape(whole), said)


@pytest.mark.model
def test_the_platforms_cap_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(QUICKSTART), "--set", "scheduler.max_running=4000", "--assume", "x86_64"]) == 0
    said = capsys.readouterr().out
    assert "capped by the platform at 4.00 GiB (memory.kv_gib lifts it)" in said
    assert "note" not in said
