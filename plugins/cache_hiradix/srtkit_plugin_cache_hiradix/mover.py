"""Moves the pages of one rank: device and host block by block, on streams of its own; storage in threads.

Nothing that is copied needs to wait for the compute stream: what is saved was computed in steps that have been
waited for, and pages that are loaded belonged to nobody. The compute stream waits for each layer's load (`gate`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.kv_store import KVStore
from srtkit.spec.platform import Event, Stream
from srtkit.spec.prefix_cache import Transfer
from srtkit.spec.tiers import MoverBuild, TierMover
from srtkit_plugin_cache_hiradix import HiradixOptions
from srtkit_plugin_cache_hiradix.memory import Batch, Block, ComponentMemory, page_bytes
from srtkit_plugin_cache_hiradix.storage import StorageCopies

WAIT_SECONDS = 300.0
Direction = Literal["in", "out"]

_log = logging.getLogger("srtkit.tiers")


@dataclass
class Lane:
    """Copies of one direction: streams that take blocks in turn, each with a stage of bytes, and what is under way.

    With two, the kernels of a block run beside the copies of the next. Both directions have lanes of their own, since
    the link takes both at once, and a step must not wait for what is saved.
    """

    streams: Sequence[Stream]
    stages: Sequence[Tensor]
    under_way: deque[tuple[list[int], list[Event], bool]] = field(default_factory=deque)

    def finished(self, done: list[int], failed: list[int]) -> None:
        """Append ids in the order of their start, as far as the device has come."""
        while self.under_way and all(event.query() for event in self.under_way[0][1]):
            ids, events, ok = self.under_way.popleft()
            for event in events:
                event.synchronize(WAIT_SECONDS)  # at once: it has been passed; the host may use its memory now
            (done if ok else failed).extend(ids)


class Mover(TierMover):
    """Host memory for as many pages as the options say, and the copies into and out of it."""

    def __init__(self, build: MoverBuild) -> None:
        """Raises `OutOfMemory` where the platform does."""
        assert isinstance(build.options, HiradixOptions)
        self._platform, options = build.platform, build.options
        host_pages = options.host_pages(page_bytes(list(chain.from_iterable(build.layers.values()))))
        self._memory = {
            name: ComponentMemory(build.platform, handles, host_pages, options.piece_kib * 1024)
            for name, handles in build.layers.items()
        }
        self._layers = sorted(layer.index for layer in chain.from_iterable(build.layers.values()))
        # The fake device judges order by whole tensors: a copy of one page and a step on another exclude each other.
        beside = build.platform.device(0).type not in ("cpu", "fakedev")
        self._overlap = beside if options.overlap == "auto" else options.overlap == "on"
        self._lanes: dict[Direction, Lane] = {"in": self._lane(), "out": self._lane()}
        self._gates: dict[int, list[Event]] = {}  # by layer: what the last start loads into it
        store = (build.needs or {}).get("storage")
        name = f"kv_store:{options.storage['use']}" if options.storage else ""
        self._storage = StorageCopies(store, name, self._memory) if isinstance(store, KVStore) else None

    def _lane(self) -> Lane:
        n_bytes = max(memory.stage_bytes for memory in self._memory.values())
        if not self._overlap:
            return Lane([self._platform.current_stream()], [self._stage(n_bytes)])
        return Lane([self._platform.new_stream() for _ in range(2)], [self._stage(n_bytes) for _ in range(2)])

    def _stage(self, n_bytes: int) -> Tensor:
        return self._platform.allocate("workspace", (n_bytes,), torch.uint8)

    def start(self, transfers: Sequence[Transfer]) -> None:
        """Launch copies in the order of layers, and hand the others to threads."""
        self._gates = {}
        for direction in self._lanes:
            if copies := [one for one in transfers if (one.tier, one.direction) == ("host", direction)]:
                self._copy(direction, copies)
        stored = [one for one in transfers if one.tier != "host"]
        if stored and self._storage is not None:
            self._storage.start(stored)

    def gate(self, layer: int) -> None:
        """Order the current stream behind that layer's load."""
        for event in self._gates.get(layer, ()):
            event.wait()

    def finished(self) -> tuple[list[int], list[int]]:
        """In order of their start, as far as the device has come."""
        done: list[int] = []
        failed: list[int] = []
        for lane in self._lanes.values():
            lane.finished(done, failed)
        if self._storage is not None:
            stored, lost = self._storage.finished()
            done, failed = done + stored, failed + lost
        return done, failed

    def close(self) -> None:
        """Wait for copies and calls under way."""
        for lane in self._lanes.values():
            for stream in lane.streams:
                stream.synchronize()
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _copy(self, direction: Direction, copies: Sequence[Transfer]) -> None:
        """Launch everything, and the marks after it.

        Where that fails, what was launched before still runs, and on these pages: the copies have failed when it has
        ended, and a step that would read what was loaded ends after that.
        """
        lane, ok = self._lanes[direction], True
        try:
            self._launch(direction, copies)
        except Exception:  # the cache forgets what it loaded, and serving goes on
            _log.exception("copies between device and host failed")
            ok = False
        events = [self._marked(stream) for stream in lane.streams]
        if self._overlap and direction == "in":  # a step that has passed its last layer has waited for all of it
            self._gates |= dict.fromkeys(self._layers[-1:] if ok else self._layers, events)
        lane.under_way.append(([one.id for one in copies], events, ok))

    def _launch(self, direction: Direction, copies: Sequence[Transfer]) -> None:
        lane = self._lanes[direction]
        for turn, (block, batches) in enumerate(self._by_block(lane, copies)):
            which = turn % len(lane.streams)
            with lane.streams[which]:
                if direction == "out":
                    block.save(batches[which], lane.stages[which])
                else:
                    block.load(batches[which], lane.stages[which])
            if self._overlap and direction == "in":
                event = self._marked(lane.streams[which])
                for layer in block.layers:
                    self._gates.setdefault(layer, []).append(event)

    def _by_block(self, lane: Lane, copies: Sequence[Transfer]) -> list[tuple[Block, list[list[Batch]]]]:
        """Blocks of all components in the order in which a step comes to them, with what each stream would copy."""
        found: list[tuple[Block, list[list[Batch]]]] = []
        for name, memory in self._memory.items():
            own = [one for one in copies if one.component == name]
            if not own:
                continue
            here = np.concatenate([one.here for one in own])
            there = np.concatenate([np.asarray(one.there, np.int32) for one in own])
            batches: list[list[Batch]] = []
            for stream in lane.streams:
                with stream:
                    batches.append(memory.batches(here, there))
            found += [(block, batches) for block in memory.blocks]
        return sorted(found, key=lambda one: one[0].layers[0])

    def _marked(self, stream: Stream) -> Event:
        with stream:
            event = self._platform.new_event()
            event.record()
        return event
