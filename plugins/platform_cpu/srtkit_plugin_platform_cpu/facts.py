"""What the operating system says of this machine's processors and memory. No torch.

Every function reads below `root`, so that a test can give it another machine.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path

from srtkit.spec.facts import DeviceFacts

ROOT = Path("/")
DTYPES = frozenset({"float32", "bfloat16", "float16"})
ISA = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "bf16", "sve", "asimd")


def cpu_facts(root: Path = ROOT) -> DeviceFacts:
    """One device: the cores this process may use, and the memory it may have.

    `extra`: "cores", physical ones; "isa", what matters to kernels, separated by spaces.
    """
    cpu = _cpuinfo(root)
    flags = (cpu.get("flags") or cpu.get("Features") or "").split()
    return DeviceFacts(
        platform="cpu",
        name=cpu.get("model name") or platform.processor() or platform.machine(),
        architecture=platform.machine(),
        memory_bytes=memory_total(root),
        dtypes=DTYPES,
        extra={"cores": str(len(usable_cpus(root))), "isa": " ".join(name for name in ISA if name in flags)},
        host_memory=True,
    )


def usable_cpus(root: Path = ROOT) -> list[int]:
    """One logical CPU for each physical core this process may use, within its control group's time quota."""
    allowed = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))
    by_core: dict[str, int] = {}
    for cpu in allowed:
        siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        by_core.setdefault(siblings or str(cpu), cpu)
    quota = min((_cpu_quota(group) for group in _groups(root)), default=len(allowed))
    return list(by_core.values())[: max(1, quota)]


def memory_total(root: Path = ROOT) -> int:
    """Bytes of physical memory, or the lowest limit of this process's control groups."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = _meminfo(root).get("MemTotal", physical)
    return min([total, *(limit for limit, _ in map(_memory_use, _groups(root)) if limit)])


def memory_available(root: Path = ROOT) -> int:
    """Bytes that can be had now without swapping, the control groups' limits included."""
    info = _meminfo(root)
    free = info["MemAvailable"] if "MemAvailable" in info else memory_total(root)
    return max(0, min([free, *(limit - used for limit, used in map(_memory_use, _groups(root)) if limit)]))


@cache
def _groups(root: Path) -> list[Path]:
    """This process's control group folders (version 2), the innermost first; the root group has no limits.

    Found once: limits change, and what is in use does, but a process stays where it was started.
    """
    path = ""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            path = line.removeprefix("0::").strip("/")
    mount = root / "sys/fs/cgroup"
    # Inside a container the path may be the host's; then the mount itself is the group.
    here = mount / path if (mount / path).is_dir() else mount
    return [here, *(parent for parent in here.parents if parent == mount or mount in parent.parents)]


def _memory_use(group: Path) -> tuple[int, int]:
    """Limit (0: none) and bytes in use, without file pages that the system would drop."""
    limit = _read(group / "memory.max") or ""
    if not limit.isdigit():
        return 0, 0
    used = int(_read(group / "memory.current") or 0)
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            used -= int(value)
    return int(limit), max(0, used)


def _cpu_quota(group: Path) -> int:
    """Whole cores' worth of time, rounded up; very many where there is no quota."""
    quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
    return -(-int(quota) // int(period)) if quota.isdigit() and period.isdigit() else 1 << 16


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entries."""
    first = (_read(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes of memory by name."""
    found = {}
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Mem"):
            found[name] = int(value.split()[0]) * 1024
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
