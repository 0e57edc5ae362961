"""What goes wrong with a store, for people: warnings in the log, few of them. Knows no pages.

Without them a wrong password or a full disk would show in counters only. A store that fails does so for every page, and
some put a file's name or seconds into the text: so a text is logged once a minute, and of different ones no more than
`TEXTS`.
"""

from __future__ import annotations

import logging
import threading
import time

SECONDS = 60.0
TEXTS = 3
MEANING = "pages that it does not give are computed"
REMEDY = "see to the store, or go on without it by POST /cache/storage"

_log = logging.getLogger("srtkit.tiers")


class Complaints:
    """About one store. Any thread calls."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # of the two below
        self._since = 0.0
        self._texts: set[str] = set()  # logged since then

    def about(self, cause: str) -> None:
        """What the store says of an error."""
        self._warn(cause.removeprefix(f"{self._name}: "), None)

    def raised(self, error: Exception) -> None:
        """An exception in a copy; the contract of stores excludes it, so it is logged with its traceback."""
        self._warn(f"a copy raised {type(error).__name__}: {error}", error)

    def _warn(self, cause: str, error: Exception | None) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._since > SECONDS:
                self._since = now
                self._texts.clear()
            if cause in self._texts or len(self._texts) == TEXTS:
                return
            self._texts.add(cause)
        _log.warning("%s: %s; %s\n  remedy: %s", self._name, cause, MEANING, REMEDY, exc_info=error)
