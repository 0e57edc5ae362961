"""Memory and CPU time of a process tree, read from /proc. Knows nothing of servers."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_KIB = 1024


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants that are alive, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, waiting = [], [pid] if _stat(pid) else []
    while waiting:
        found.append(waiting.pop(0))
        waiting += children.get(found[-1], [])
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size of the tree: a page shared by n processes counts as 1/n in each."""
    return sum(_field(p, "smaps_rollup", "Pss:") for p in tree(pid))


def peak_rss_bytes(pid: int) -> int:
    """Sum of the high-water marks that the kernel keeps; shared pages count in every process."""
    return sum(_field(p, "status", "VmHWM:") for p in tree(pid))


def cpu_seconds(pid: int) -> float:
    """User and system time of the living processes of the tree."""
    return sum(int(stat[11]) + int(stat[12]) for p in tree(pid) if (stat := _stat(p))) / _TICKS


def machine_busy_seconds() -> float:
    """CPU seconds that the whole machine has not been idle since it started, all cores together."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` on; empty when the process is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if fields[0] in "ZX" else fields


def _field(pid: int, file: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(name)), 0)


@dataclass(frozen=True)
class CpuReading:
    """Clocks at one moment; the difference of two says who computed in between."""

    measured: float
    client: float
    busy: float

    @classmethod
    def take(cls, pid: int) -> CpuReading:
        """`measured` is the tree of `pid`, `client` this process, `busy` the machine."""
        own = os.times()
        return cls(cpu_seconds(pid), own.user + own.system, machine_busy_seconds())

    def since(self, before: CpuReading) -> dict[str, float]:
        """CPU seconds of the server, of the load generator, and of everything else on the machine."""
        server, client = self.measured - before.measured, self.client - before.client
        return {"server": server, "load_generator": client, "other": self.busy - before.busy - server - client}


class PeakPss:
    """Watches a tree's PSS from a thread, once a second: reading it makes the kernel walk the page tables."""

    def __init__(self, pid: int, interval: float = 1.0) -> None:
        self.bytes = 0
        self._pid = pid
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-pss", daemon=True)

    def __enter__(self) -> Self:
        self.sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def sample(self) -> None:
        """Takes one reading now."""
        self.bytes = max(self.bytes, pss_bytes(self._pid))

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()
