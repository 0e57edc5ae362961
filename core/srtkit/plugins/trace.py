"""A record of what discovery and wiring did, for `srt plugins trace`. Knows text and seconds only."""

from typing import NamedTuple


class TraceEvent(NamedTuple):
    """One decision or load: what was done, to which part, why or with what result, and how long it took."""

    action: str
    part: str
    detail: str = ""
    seconds: float = 0.0


# Events in the order they happened.
Trace = list[TraceEvent]
