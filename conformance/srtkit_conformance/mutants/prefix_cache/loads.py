"""Caches whose slower tiers bring back something else than the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.prefix_cache import Evicted, Transfer
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, around


class LoadsBackwards(Wrapped):
    """Fills the pages of a load in the reverse order."""

    def transfers(self) -> list[Transfer]:
        found = self.inner.transfers()
        return [replace(one, there=_reversed(one.there)) if one.direction == "in" else one for one in found]


def _reversed(there: tuple[bytes, ...] | Ints) -> tuple[bytes, ...] | Ints:
    return there[::-1] if isinstance(there, tuple) else np.ascontiguousarray(there[::-1])


class KeepsFailedLoads(Wrapped):
    """Takes every outcome for a good one."""

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return self.inner.complete([*done, *failed], [])


backwards = mutant(
    "prefix_cache.loads_backwards",
    of="hiradix",
    sentence="Fills the pages of a load in the reverse order.",
    killed_by=("prefix_cache.loads",),
)(around(LoadsBackwards))
keeps_failed = mutant(
    "prefix_cache.keeps_failed_loads",
    of="hiradix",
    sentence="Takes failed copies for good ones.",
    killed_by=("prefix_cache.failed_load",),
)(around(KeepsFailedLoads))
