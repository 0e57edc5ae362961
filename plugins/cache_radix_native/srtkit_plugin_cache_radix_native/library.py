"""The shared library: its functions and structures as ctypes. The one place that knows src/abi.h from Python.

Importing costs nothing; `load` opens the library once.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int64, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

from srtkit.spec.errors import DeviceAbsent
from srtkit_plugin_cache_radix_native import LIBRARY, PART, REMEDY


class State(Structure):
    """`struct State`: what a cache shows of itself."""

    _fields_ = [
        ("evictable", c_int64),
        ("pinned", c_int64),
        ("entries", c_int64),
        ("lease", c_uint64),
        ("out", c_void_p),
        ("out_size", c_int64),
        ("n_remaps", c_int64),
        ("event_numbers", c_void_p),
        ("event_names", c_void_p),
        ("n_event_numbers", c_int64),
        ("n_event_names", c_int64),
    ]


REFUSALS = {
    -1: "this lease has ended already",
    -2: "this lease is of another cache",
    -3: "insert ends before its lease",
    -4: "this cache is closed",
    -6: "this cache ran out of memory before",
}
"""`enum Refusal`, but for `NO_MEMORY`."""
NO_MEMORY = -5

_I, _L, _S, _P = c_int64, c_uint64, c_char_p, c_void_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (_P, (_I, _I, _I, _I, c_uint64)),
    "free": (None, (_P,)),
    "state": (POINTER(State), (_P,)),
    "match": (_I, (_P, _S, _I, _S)),
    "peek": (_I, (_P, _S, _I, _S)),
    "insert": (_I, (_P, _L, _S, _S, _S, _I)),
    "release": (_I, (_P, _L)),
    "evict": (_I, (_P, _I)),
    "reset": (_I, (_P,)),
    "take_events": (_I, (_P,)),
    "nodes_alive": (_I, ()),
}


class Library:
    """The C functions. Arrays go in as bytes, which they read during the call only."""

    __slots__ = tuple(_SIGNATURES)

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = library[f"srtkit_radix_{name}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


@lru_cache
def load() -> Any:
    """The library's functions, by name. Raises `DeviceAbsent` when it cannot be opened.

    Calls keep the interpreter's lock: in a step they take microseconds, and to get it back from a busy thread takes
    milliseconds. `reset` and `free` of a million nodes take longer, and no step waits for those.
    """
    try:
        return Library(ctypes.PyDLL(str(LIBRARY)))
    except (OSError, AttributeError) as error:  # another C++ runtime's, or left by another version
        raise DeviceAbsent(PART, f"its library cannot be used: {error}", REMEDY) from error
