"""The mandatory checks of the contract, as `srt conformance run my-kind:my-plugin` runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WAIVERS = Path(__file__).parents[1] / "waivers.toml"


def test_it_keeps_the_contract() -> None:
    command = [sys.executable, "-m", "srtkit", "conformance", "run", "my-kind:my-plugin", "--level", "my-level"]
    done = subprocess.run([*command, "--waivers", str(WAIVERS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
