"""What a figure depends on besides the code: machine, versions, date, command. Imports nothing it reports on."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "numpy", "tokenizers", "gguf", "safetensors", "pyzmq", "uvicorn", "httptools")


def environment(secret: str | None = None) -> dict[str, Any]:
    """Plain data for the JSON file. `secret` is left out of the command, since results are passed on."""
    command = [part.replace(secret, "***") for part in sys.argv] if secret else sys.argv
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(command),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": os.getloadavg()[0],
        "versions": _versions(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> dict[str, str]:
    """Every installed distribution of srtkit, and the libraries that matter to speed."""
    found = {dist.name: dist.version for dist in metadata.distributions() if dist.name}
    return {name: found[name] for name in sorted(found) if name.startswith("srtkit") or name in _LIBRARIES}
