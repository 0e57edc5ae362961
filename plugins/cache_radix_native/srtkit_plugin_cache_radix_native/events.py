"""Events as the library writes them (src/events.h), read into the contract's. Hashes are made in C++."""

from __future__ import annotations

from ctypes import string_at
from typing import Literal

import numpy as np

from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_radix_native.library import State

KINDS: tuple[Literal["stored", "removed", "cleared"], ...] = ("stored", "removed", "cleared")
"""In the order of `enum Event`."""


def read_events(state: State) -> list[CacheEvent]:
    """The events that the state shows."""
    if not state.n_event_numbers:
        return []
    numbers = np.frombuffer(string_at(state.event_numbers, 8 * state.n_event_numbers), np.uint64).tolist()
    names = string_at(state.event_names, state.n_event_names)
    events = []
    at = name_at = 0
    while at < len(numbers):
        kind, before, name_size, n = numbers[at : at + 4]
        name = names[name_at : name_at + name_size]
        events.append(CacheEvent(KINDS[kind], tuple(numbers[at + 4 : at + 4 + n]), before, name))
        at, name_at = at + 4 + n, name_at + name_size
    return events
