"""The server on a CPU with the quick-start model: speed (W1 to W4), start-up time, memory without KV.

Table to standard error, JSON to standard output. Goals are for 2 cores, the model in bfloat16. Nothing is
asserted: a quiet machine and an eye on `cpu_s.other` in the JSON belong to a result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.goals import Finding, print_findings

ROOT = Path(__file__).parents[1]
GIB = 2**30


def measure(arguments: argparse.Namespace, *more: str) -> tuple[int, dict[str, Any]]:
    """Runs `srt bench serve`, with `more` arguments; its exit code and its JSON."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "srtkit", "bench", "serve", "--config", arguments.config, "--json", str(file)]
        command += ["--workload", *arguments.workload, "--repeats", str(arguments.repeats)]
        command += ["--seed", str(arguments.seed), *more]
        command += [part for setting in arguments.set for part in ("--set", setting)]
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
        if not file.exists():
            sys.exit(code or 1)
        return code, json.loads(file.read_text("utf-8"))


def findings(result: dict[str, Any]) -> list[Finding]:
    """The claims of this script."""
    memory = result["memory"]
    return [
        _spread(result, "W1", "decode_tok_s", "one stream", ">=", 70, "tok/s"),
        _spread(result, "W2", "output_tok_s", "32 at once", ">=", 300, "output tok/s"),
        _spread(result, "W3", "seconds", "32 with a shared prefix of 1024", "<=", 2.5, "s"),
        Finding("ready after", "<=", 8, "s", result["startup"]["ready_s"]),
        Finding("memory without KV, when ready", "<=", 1.3, "GiB", _gib(memory["pss_ready_without_kv_bytes"])),
        Finding("memory without KV, peak", "<=", 1.3, "GiB", _gib(memory["pss_peak_without_kv_bytes"])),
    ]


def warm(cold: dict[str, Any], arguments: argparse.Namespace) -> list[Finding]:
    """How many times as fast W3 is where its prefix is in the cache before; nothing if W3 was not asked for."""
    if "W3" not in cold["workloads"]:
        return []
    _, result = measure(arguments, "--workload", "W3", "--warm-prefix")
    seconds = [one["workloads"]["W3"]["summary"]["seconds"]["median"] for one in (cold, result)]
    return [Finding("W3 with its prefix cached: times as fast", ">=", 1, "", seconds[0] / seconds[1])]


def _spread(
    result: dict[str, Any], workload: str, figure: str, claim: str, sign: str, goal: float, unit: str
) -> Finding:
    found = result["workloads"].get(workload, {"summary": {}})["summary"].get(figure)
    values = (None, None, None) if found is None else (found["median"], found["low"], found["high"])
    return Finding(f"{workload}: {claim}", sign, goal, unit, *values)


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB


def main() -> int:
    """Returns the exit code of `srt bench serve`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(ROOT / "configs" / "quickstart.toml"))
    parser.add_argument("--workload", nargs="+", default=["all"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override for the server")
    arguments = parser.parse_args()
    code, result = measure(arguments)
    found = findings(result) + warm(result, arguments)
    print_findings(found, Console(stderr=True))
    print(json.dumps({"goals": [finding.as_data() for finding in found], "result": result}, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
