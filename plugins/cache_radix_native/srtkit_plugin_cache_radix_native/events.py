"""Events as the library writes them (src/events.h), read into the contract's. Hashes are made in C++."""

from __future__ import annotations

from typing import Literal

import numpy as np

from srtkit.spec.prefix_cache import CacheEvent

KINDS: tuple[Literal["stored", "removed", "cleared"], ...] = ("stored", "removed", "cleared")
"""In the order of `enum Event`."""


def read_events(numbers_of: bytes, names: bytes) -> list[CacheEvent]:
    """Events as `EventLog` in src/events.h collects them: uint64 numbers, and the namespaces one after the other."""
    numbers = np.frombuffer(numbers_of, np.uint64).tolist()
    events = []
    at = name_at = 0
    while at < len(numbers):
        kind, before, name_size, n = numbers[at : at + 4]
        name = names[name_at : name_at + name_size]
        events.append(CacheEvent(KINDS[kind], tuple(numbers[at + 4 : at + 4 + n]), before, name))
        at, name_at = at + 4 + n, name_at + name_size
    return events
