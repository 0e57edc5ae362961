"""`srt --help` is quick, and imports no plugin and no tensor library.

CPU time is user + system of the child as the kernel counts it, so a busy machine disturbs it little. Table to
standard error, JSON to standard output.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys

from rich.console import Console

from bench.goals import Finding, print_findings

COMMAND = [sys.executable, "-m", "srtkit", "--help"]
RUNS = 9
HEAVY = ("torch", "transformers", "triton")
IMPORT_LINE = re.compile(r"^import time:\s+(\d+) \|\s+(\d+) \|\s+(\S+)$", re.MULTILINE)


def cpu_seconds() -> float:
    """User and system seconds of one run; ends this script when the command fails."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(COMMAND[0], COMMAND, os.environ, file_actions=silent)
    _, status, usage = os.wait4(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(COMMAND)} ended with {code}")
    return usage.ru_utime + usage.ru_stime


def imports() -> dict[str, int]:
    """Every module that one run imports → its own microseconds, from the interpreter's import log."""
    command = [COMMAND[0], "-X", "importtime", *COMMAND[1:]]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {name: int(own) for own, _, name in IMPORT_LINE.findall(log)}


def main() -> int:
    """Measures and prints; always 0, since nothing is asserted here."""
    loaded = imports()  # also warms the file cache
    unwanted = sorted(n for n in loaded if n.startswith("srtkit_plugin_") or n.partition(".")[0] in HEAVY)
    seconds = sorted(cpu_seconds() for _ in range(RUNS))
    found = [
        Finding("CPU time of srt --help", "<", 0.5, "s", statistics.median(seconds), seconds[0], seconds[-1]),
        Finding("plugins and tensor libraries imported", "<=", 0, "modules", len(unwanted)),
    ]
    print_findings(found, Console(stderr=True))
    dearest = dict(sorted(loaded.items(), key=lambda item: -item[1])[:10])
    goals = [finding.as_data() for finding in found]
    print(json.dumps({"goals": goals, "unwanted": unwanted, "modules": len(loaded), "dearest_us": dearest}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
