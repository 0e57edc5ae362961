"""The conformance suite is quick enough to be run: levels 0 and 1 of every plugin, level 3, and the suite's own proof.

Wall time on this machine, and CPU time of all processes, which says what a quieter one would take. Table to standard
error, JSON to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console

from bench.goals import Finding, print_findings
from srtkit_conformance.catalogue import DEVICES
from tools.certificates import ours

PLUGIN_SECONDS, SERVER_SECONDS, WHOLE_SECONDS, QUICK_SECONDS = 60, 120, 360, 120
ELSEWHERE = ("cuda", "fa3", "flashinfer", "triton")
"""Parts of the names of plugins whose device is not a CPU."""


@dataclass(frozen=True)
class Run:
    """One command: wall and CPU seconds, and how it ended."""

    what: str
    seconds: float
    cpu_seconds: float
    exit_code: int


def timed(what: str, command: list[str]) -> Run:
    """Run a command in silence, one thread of OpenMP a process."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    begin = time.monotonic()
    pid = os.posix_spawnp(command[0], command, {**os.environ, "OMP_NUM_THREADS": "1"}, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begin
    return Run(what, seconds, usage.ru_utime + usage.ru_stime, os.waitstatus_to_exitcode(status))


def certification(part: str, level: int) -> Run:
    """One plugin to a level, all below included."""
    command = [sys.executable, "-m", "srtkit", "conformance", "run", part, "--level", str(level)]
    return timed(f"{part}, level {level}", [*command, *(["--device", DEVICES[part]] if part in DEVICES else [])])


def slowest(claim: str, goal: float, runs: Sequence[Run]) -> Finding:
    """The one that takes longest, with the range of all. No value if one did not reach its level."""
    seconds = sorted(run.seconds for run in runs)
    value = None if any(run.exit_code for run in runs) else seconds[-1]
    return Finding(claim, "<", goal, "s", value, seconds[0], seconds[-1])


def main() -> int:
    """Measures and prints; always 0, since nothing is asserted here."""
    parser = argparse.ArgumentParser(prog="python -m bench conformance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("plugin", nargs="*", metavar="KIND:NAME", help="default: all that run on a CPU")
    parser.add_argument("--no-selftest", action="store_true", help="plugins only")
    parser.add_argument("--server", metavar="KIND:NAME", default="attention:torch", help="whose level 3 is measured")
    arguments = parser.parse_args()
    plugins = arguments.plugin or [part for part in ours() if not any(word in part for word in ELSEWHERE)]
    runs = [certification(part, 1) for part in plugins]
    server = [certification(arguments.server, 3)]
    found = [
        slowest("levels 0 and 1 of a plugin", PLUGIN_SECONDS, runs),
        slowest(f"levels 0 to 3 of {arguments.server}", PLUGIN_SECONDS + SERVER_SECONDS, server),
    ]
    proofs = [] if arguments.no_selftest else [timed(name, ["make", name]) for name in ("selftest", "selftest-quick")]
    goals = (WHOLE_SECONDS, QUICK_SECONDS)
    found += [slowest(f"make {run.what}", goal, [run]) for run, goal in zip(proofs, goals, strict=False)]
    print_findings(found, Console(stderr=True))
    data = {"goals": [one.as_data() for one in found], "runs": [asdict(run) for run in (*runs, *server, *proofs)]}
    print(json.dumps({**data, "cores": os.cpu_count(), "load_average": os.getloadavg()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
