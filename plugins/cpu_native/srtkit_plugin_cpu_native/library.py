"""The shared library: finding it, its structures as ctypes, and which instruction sets it chose.

The one place that knows src/abi.h from Python. Importing costs nothing; `load` opens the library once.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from srtkit_plugin_cpu_native import LIBRARY

SETS = ("AVX2", "AVX-512", "AVX512_BF16", "AMX")
"""The instruction sets, each of which has those before it; `load` takes an index."""
DTYPES = {"float32": 0, "bfloat16": 1}
"""`enum Dtype`."""


class Step(Structure):
    """`struct Step`: one step's work."""

    _fields_ = [
        ("pieces", c_void_p),
        ("merges", c_void_p),
        ("ids", c_void_p),
        ("page_table", c_void_p),
        ("slots", c_void_p),
        ("partials", c_void_p),
        ("page_table_stride", c_int64),
        ("n_pieces", c_int32 * 2),
        ("n_items", c_int32 * 2),
        ("n_merges", c_int32 * 2),
        ("tokens", c_int32),
        ("page_tokens", c_int32),
    ]


class Group(Structure):
    """`struct Group`: what a layer group computes."""

    _fields_ = [
        *((name, c_int32) for name in ("dtype", "q_heads", "kv_heads", "head_dim", "window", "threads", "block")),
        ("scale", c_float),
        ("soft_cap", c_float),
    ]


class Layer(Structure):
    """`struct Layer`: one layer's memory."""

    _fields_ = [
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_page", c_int64),
        ("v_page", c_int64),
        ("sinks", c_void_p),
    ]


_P, _I, _L = c_void_p, c_int32, c_int64
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "store": (_P, _P, _P, _P, _P, _L, _L),
    "attend": (_P, _P, _P, _P, _L, _P, _P, _I),
    "rms_norm": (_I, _P, _L, _P, _P, _P, _L, _L, c_float, _I),
    "silu_mul": (_I, _P, _P, _L, _L, _I),
    "rope": (_I, _P, _L, _P, _P, _L, _L, _L, _L, _I),
    "linear": (_P, _L, _P, _P, _P, _P, _L, _L, _L, _I),
    "keep_steps": (_P, _L, _P, _P, _I),
}
"""`struct Kernels`, in its order."""


class _Kernels(Structure):
    _fields_ = [(name, c_void_p) for name in _SIGNATURES]


@dataclass(frozen=True)
class Kernels:
    """The C functions for this processor. Calls release the interpreter's lock.

    `name` is the instruction set; `linear` and `keep_steps` are None where the processor has no bfloat16 instructions.
    """

    name: str
    store: Any
    attend: Any
    rms_norm: Any
    silu_mul: Any
    rope: Any
    linear: Any
    keep_steps: Any


@lru_cache
def _open() -> ctypes.CDLL | None:
    return ctypes.CDLL(str(LIBRARY)) if LIBRARY.exists() else None


@lru_cache
def load(most: int = len(SETS) - 1) -> Kernels | None:
    """The kernels of the best set for this processor; None without a library, or without a set for the processor.

    torch must be loaded before, so that both use one OpenMP and with it the same threads.
    """
    library = _open()
    if library is None:
        return None
    name = c_char_p()
    library.srtkit_kernels.restype = POINTER(_Kernels)
    found = library.srtkit_kernels(c_int32(most), ctypes.byref(name))
    if not found:
        return None
    assert name.value is not None
    addresses = {field: getattr(found.contents, field) for field in _SIGNATURES}
    calls = {
        field: ctypes.CFUNCTYPE(None, *_SIGNATURES[field])(address) if address else None
        for field, address in addresses.items()
    }
    return Kernels(name.value.decode(), **calls)
