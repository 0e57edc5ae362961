"""What the device finds wrong with the program that runs on it."""

from __future__ import annotations

from srtkit.spec.errors import EngineError, Unsupported

PART = "platform:fakedev"


class RaceFound(EngineError):
    """Two uses of the same memory, one of them a write, that nothing orders: a synchronisation is missing."""

    def __init__(self, cause: str) -> None:
        super().__init__(PART, cause, "record an event after the one and wait for it before the other")


class Trapped(Unsupported):
    """Something that a captured region may not do: waiting on the host, allocating, leaving its stream."""

    def __init__(self, what: str) -> None:
        super().__init__(PART, f"{what} inside a captured region", "do it before the capture")
