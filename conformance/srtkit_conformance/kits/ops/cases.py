"""Which operators are asked for, in which dtypes and sizes, as data. Imports no torch: a check must see who does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from srtkit.spec.capabilities import Answer
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.ops import OpFacts, OpsDescriptor

DTYPES = ("float32", "bfloat16", "float16")
"""The most exact first: it shows most faults."""
_HIDDEN = ({"hidden": 64}, {"hidden": 5}, {"hidden": 129}, {"hidden": 576})
SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "rms_norm": _HIDDEN,
    "add_rms_norm": _HIDDEN,
    "silu_mul": ({"hidden": 64}, {"hidden": 7}, {"hidden": 129}),
    "rope": (
        {"head_dim": 64, "rotary": 64},
        {"head_dim": 10, "rotary": 6},
        {"head_dim": 80, "rotary": 32},
        {"head_dim": 2, "rotary": 2},
    ),
    "norm_rope": ({"head_dim": 64}, {"head_dim": 10}, {"head_dim": 80}, {"head_dim": 2}),
    "embed": _HIDDEN,
    "penalize": ({"vocab": 64}, {"vocab": 5}, {"vocab": 129}),
    "argmax": ({"vocab": 64}, {"vocab": 5}, {"vocab": 129}, {"vocab": 5000}),
    "sample": ({"vocab": 64}, {"vocab": 1}, {"vocab": 300}),
    "linear": ({"in": 64, "out": 48}, {"in": 32, "out": 5}, {"in": 7, "out": 33}, {"in": 96, "out": 1}),
    "route": (
        {"experts": 8, "per_token": 2, "renormalised": 1},
        {"experts": 8, "per_token": 2, "renormalised": 0},
        {"experts": 128, "per_token": 8, "renormalised": 1},
        {"experts": 60, "per_token": 4, "renormalised": 0},
    ),
    "experts": (
        {"experts": 4, "per_token": 2, "hidden": 128, "size": 128},
        {"experts": 3, "per_token": 1, "hidden": 24, "size": 40},
    ),
}
"""Sizes as the layers name them; some are multiples of a vector or a tile, others are not."""


@dataclass(frozen=True)
class Case:
    """One operator for one layer."""

    op: str
    dtype: str
    sizes: Mapping[str, int] = field(hash=False)

    def facts(self, device: DeviceFacts) -> OpFacts:
        """What the predicate and `bind` are given."""
        return OpFacts(self.op, self.dtype, device, dict(self.sizes))


def cases_of(op: str, device: DeviceFacts) -> Iterator[Case]:
    """Every size in every dtype of the device."""
    for dtype in DTYPES:
        if dtype in device.dtypes:
            yield from (Case(op, dtype, sizes) for sizes in SIZES[op])


def any_case(op: str, device: DeviceFacts, rng: np.random.Generator) -> Case:
    """A case of any size up to 400."""
    dtypes = [dtype for dtype in DTYPES if dtype in device.dtypes]
    sizes = {name: int(rng.integers(1, 400)) for name in SIZES[op][0]}
    if op == "rope":
        half = int(rng.integers(1, 65))
        sizes = {"head_dim": 2 * half, "rotary": 2 * int(rng.integers(1, half + 1))}
    if op == "norm_rope":
        sizes = {"head_dim": 2 * int(rng.integers(1, 65))}
    if op in ("route", "experts"):
        k = int(rng.integers(1, 9))
        sizes = {"experts": int(rng.choice((16, 64, k + 1))), "per_token": k, "renormalised": int(rng.integers(2))}
    if op == "experts":
        wide = {name: int(rng.choice((8, 40, 128))) for name in ("hidden", "size")}
        sizes = {"experts": k + 1, "per_token": k} | wide
    return Case(op, dtypes[int(rng.integers(len(dtypes)))], sizes)


def ask_all(descriptor: OpsDescriptor, device: DeviceFacts) -> list[Answer]:
    """The predicate's answers to every case of every declared name."""
    offered = [op for op in SIZES if op in descriptor.names]
    return [descriptor.accepts(case.facts(device)) for op in offered for case in cases_of(op, device)]
