"""How `srt` ends when something goes wrong: one sentence and an exit code. docs/errors.md lists them all."""

import errno
from pathlib import Path

USAGE = 2
INTERRUPTED = 130
PORT_IN_USE = 80
DISK_FULL = 81
OTHER_OS_ERROR = 82


def os_error(error: OSError) -> tuple[str, int]:
    """The sentence and exit code of an operating-system error that nobody closer has explained."""
    if error.errno == errno.EADDRINUSE:
        return f"server: {error}\n  remedy: choose another port, e.g. --set server.port=0", PORT_IN_USE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        from srtkit.config.source import folders

        file, moved = error.filename, folders().items()
        named = [f"{name} ({path})" for name, path in moved if not file or Path(file).is_relative_to(path)]
        elsewhere = f", or set {' or '.join(named)} to another folder" if named else ""
        return f"disk: it is full{f' at {file}' if file else ''}\n  remedy: free some space there{elsewhere}", DISK_FULL
    return f"system: {error}", OTHER_OS_ERROR
