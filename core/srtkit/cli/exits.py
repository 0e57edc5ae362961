"""How `srt` ends when something goes wrong: one sentence and an exit code. docs/errors.md lists them all."""

import errno

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
        place = f" at {error.filename}" if error.filename else ""
        return f"disk: it is full{place}\n  remedy: free some space, or set TMPDIR or HF_HOME elsewhere", DISK_FULL
    return f"system: {error}", OTHER_OS_ERROR
