"""A record of what discovery and wiring did, for `srt plugins trace`. Knows text and seconds only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TraceEvent:
    """One decision or load: what was done, to which part, why or with what result, and how long it took."""

    action: str
    part: str
    detail: str = ""
    seconds: float = 0.0


@dataclass
class Trace:
    """Events in the order they happened."""

    events: list[TraceEvent] = field(default_factory=list)

    def add(self, action: str, part: str, detail: str = "", seconds: float = 0.0) -> None:
        """Append an event."""
        self.events.append(TraceEvent(action, part, detail, seconds))
