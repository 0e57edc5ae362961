"""Ours beside a peer on one machine, in turns: the host's speed moves by the minute, a ratio does not.

Starts our server; the peer runs already (give its URL and the pid of its first process). Before each measurement
the other one's processes are stopped (SIGSTOP), and continued after. Table to standard error, JSON to standard
output: for each workload both medians and the median of the rounds' ratios (above 1: ours is better).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from srtkit_plugin_cli_bench.process import tree
from srtkit_plugin_cli_bench.server import Server

ROOT = Path(__file__).parents[1]
FIGURES = {
    "W1": ("decode_tok_s", True),
    "W2": ("output_tok_s", True),
    "W3": ("seconds", False),
    "W4": ("ttft_mean_s", False),
}
"""Workload → its figure, and whether more is better."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process tree below `pid` takes no processor time meanwhile."""
    pids = tree(pid)
    try:
        for one in pids:
            os.kill(one, signal.SIGSTOP)
        yield
    finally:
        for one in pids:
            os.kill(one, signal.SIGCONT)


def measure(url: str, pid: int, workload: str, seed: int) -> dict[str, Any]:
    """One repeat of a workload, after its warm-up; the summary's medians."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "srtkit",
            "bench",
            "serve",
            "--url",
            url,
            "--pid",
            str(pid),
            "--json",
            str(file),
        ]
        command += ["--workload", workload, "--repeats", "1", "--seed", str(seed)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        found = json.loads(file.read_text("utf-8"))["workloads"][workload]
    return {name: value["median"] for name, value in found["summary"].items()} | {"cpu_s": found["cpu_s"]}


def compare(rounds: list[dict[str, Any]], workload: str) -> dict[str, Any]:
    """Medians of both sides and of the ratios."""
    figure, more = FIGURES[workload]
    ours, peer = ([one[side][figure] for one in rounds] for side in ("ours", "peer"))
    ratios = [a / b if more else b / a for a, b in zip(ours, peer, strict=True)]
    return {
        "figure": figure,
        "ours": median(ours),
        "peer": median(peer),
        "ratio": median(ratios),
        "low": min(ratios),
        "high": max(ratios),
    }


def main() -> int:
    """Returns 0, or raises what a measurement raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=str(ROOT / "configs" / "quickstart.toml"))
    parser.add_argument("--peer-url", required=True)
    parser.add_argument("--peer-pid", type=int, required=True)
    parser.add_argument("--workload", nargs="+", choices=sorted(FIGURES), default=["W1", "W2", "W3"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    rounds: dict[str, list[dict[str, Any]]] = {workload: [] for workload in arguments.workload}
    with ExitStack() as stack:
        with stopped(arguments.peer_pid):
            server = stack.enter_context(Server(arguments.config, [], 60.0))
        for seed in range(arguments.rounds):
            for workload in arguments.workload:
                with stopped(arguments.peer_pid):
                    ours = measure(server.target.url, server.pid, workload, seed)
                with stopped(server.pid):
                    peer = measure(arguments.peer_url, arguments.peer_pid, workload, seed)
                rounds[workload].append({"ours": ours, "peer": peer})
                figure = FIGURES[workload][0]
                console.print(f"round {seed + 1} {workload} {figure}: ours {ours[figure]:.3g}, peer {peer[figure]:.3g}")
    result = {workload: compare(found, workload) for workload, found in rounds.items()}
    table = Table("workload", "figure", "ours", "peer", "ratio [low, high]")
    for workload, one in result.items():
        figures = (f"{one[name]:.3g}" for name in ("ours", "peer"))
        table.add_row(workload, one["figure"], *figures, f"{one['ratio']:.2f} [{one['low']:.2f}, {one['high']:.2f}]")
    console.print(table)
    print(json.dumps({"result": result, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
