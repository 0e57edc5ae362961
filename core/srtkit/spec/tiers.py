"""Tiers below the device's pages: who moves the bytes on a rank.

The cache runs in the scheduler, knows no tensor, and asks for copies as `Transfer`s. They travel in the step plan;
each rank's `TierMover` runs them on its own memory under the same page numbers, and their outcomes come back to
`PrefixCache.complete`. Tier "host" is host memory (`there`: its pages, `here`: the device's); tier "storage" is a
`kv_store` (`there`: keys, `here`: pages of the host tier), so nothing goes from a store straight to the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel

from srtkit.spec.kv_store import KEY_BYTES
from srtkit.spec.prefix_cache import Transfer
from srtkit.spec.step_plan import EMPTY, Ints

if TYPE_CHECKING:
    from srtkit.spec.attention import LayerHandle
    from srtkit.spec.platform import Platform

_KEY_WORDS = KEY_BYTES // 4


class TierMover(ABC):
    """Runs transfers on one rank. One thread calls: that of the step loop."""

    @abstractmethod
    def start(self, transfers: Sequence[Transfer]) -> None:
        """Start all of them, before the step of their plan. Does not wait, does not raise for what goes wrong."""

    @abstractmethod
    def gate(self, layer: int) -> None:
        """Make the current stream wait for what the last `start` loads of that layer. The host does not wait."""

    @abstractmethod
    def finished(self) -> tuple[list[int], list[int]]:
        """Ids that are done and that have failed since the last call.

        Those that load are among them once the step they were started with has been waited for; any other, `needed_by`
        seconds after its start at the latest.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for copies, give up the rest, free memory and close what was given as needs. Idempotent."""


@dataclass(frozen=True)
class MoverBuild:
    """What core gives a mover at build. `layers`: per component all layers' handles, whose planes are
    [pages, *shape] on the device; `needs` has stores only; `identity` as in `PrefixCacheBuild`."""

    platform: Platform
    layers: Mapping[str, Sequence[LayerHandle]]
    identity: bytes
    options: BaseModel
    needs: Mapping[str, object] | None = None


def pack_transfers(transfers: Sequence[Transfer], components: Sequence[str]) -> Ints:
    """Transfers as int32 words, for a plan: id, component, kind, pages, milliseconds, then here and there."""
    words: list[Ints] = []
    for one in transfers:
        keys = b"".join(one.there) if isinstance(one.there, tuple) else None
        kind = (one.direction == "in") + 2 * (keys is not None)
        milliseconds = int(one.needed_by * 1000)
        head = np.array([one.id, components.index(one.component), kind, len(one.here), milliseconds], np.int32)
        words += [head, one.here, np.asarray(one.there, np.int32) if keys is None else np.frombuffer(keys, "<i4")]
    return np.concatenate(words) if words else EMPTY


def unpack_transfers(words: Ints, components: Sequence[str]) -> list[Transfer]:
    """The inverse of `pack_transfers`."""
    found: list[Transfer] = []
    while len(words):
        number, component, kind, n, milliseconds = words[:5].tolist()
        here, words = words[5 : 5 + n], words[5 + n :]
        direction: Literal["out", "in"] = "in" if kind & 1 else "out"
        there: Ints | tuple[bytes, ...] = words[:n]
        if kind & 2:
            keys = words[: n * _KEY_WORDS].tobytes()
            there = tuple(keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))
        words = words[n * _KEY_WORDS if kind & 2 else n :]
        tier = "storage" if kind & 2 else "host"
        found.append(Transfer(number, components[component], direction, tier, here, there, milliseconds / 1000))
    return found
