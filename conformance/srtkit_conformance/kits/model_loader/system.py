"""What the kernel knows of this process: bytes it has read from files, files it holds open. Linux only."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

LINUX = sys.platform == "linux"
_SELF = Path("/proc/self")


def bytes_read() -> int:
    """By calls of read, since the process began."""
    return int((_SELF / "io").read_text().split("rchar:")[1].split()[0])


def bytes_mapped(folder: Path) -> int:
    """Resident bytes of mappings of files in `folder`."""
    total, ours = 0, False
    for line in (_SELF / "smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.partition(" ")[0]:
            ours = str(folder) in line
        elif ours and line.startswith("Rss:"):
            total += 1024 * int(line.split()[1])
    return total


def files_held(folder: Path) -> list[str]:
    """Files in `folder` that are open or mapped, after everything unused has been freed."""
    gc.collect()
    mapped = [line.split(maxsplit=5)[5] for line in (_SELF / "maps").read_text().splitlines() if str(folder) in line]
    opened = []
    for link in (_SELF / "fd").iterdir():
        try:
            opened.append(str(link.readlink()))
        except FileNotFoundError:  # the listing's own
            continue
    return sorted({Path(name).name for name in (*mapped, *opened) if name.startswith(str(folder))})
