"""One request as its client saw it. Knows no protocol; the drivers fill it, `metrics` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class Trace:
    """Times are readings of `time.perf_counter()` in seconds; counts are tokens as the server counted them.

    `arrivals` has one reading for each streamed event that carried output; an event may carry several
    tokens. A request with `error` counts as failed, whatever else is filled. If it was not `streamed`
    the one arrival is that of the whole answer and says nothing of latencies between tokens.
    """

    sent: float
    arrivals: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    error: str | None = None
    streamed: bool = True

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first event with output."""
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: seconds between consecutive events."""
        return [after - before for before, after in pairwise(self.arrivals)]

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first event, or None when there was but one event or token."""
        if len(self.arrivals) < 2 or self.output_tokens < 2:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)
