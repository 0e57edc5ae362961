"""Moves the pages of one rank: device and host layer by layer, on a stream of its own; storage in threads.

Nothing that is copied needs to wait for the compute stream: what is saved was computed in steps that have been
waited for, and pages that are loaded belonged to nobody. The compute stream waits for each layer's load (`gate`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np

from srtkit.spec.kv_store import KVStore
from srtkit.spec.platform import Event
from srtkit.spec.prefix_cache import Transfer
from srtkit.spec.tiers import MoverBuild, TierMover
from srtkit_plugin_cache_hiradix import HiradixOptions
from srtkit_plugin_cache_hiradix.memory import ComponentMemory, LayerMemory, Run, page_bytes, runs_of
from srtkit_plugin_cache_hiradix.storage import StorageCopies

WAIT_SECONDS = 300.0
Layer = tuple[LayerMemory, list[Run], list[Run]]
"""A layer, what is saved of it and what is loaded into it."""

_log = logging.getLogger("srtkit.tiers")


class Mover(TierMover):
    """Host memory for as many pages as the options say, and the copies into and out of it."""

    def __init__(self, build: MoverBuild) -> None:
        """Raises `OutOfMemory` where the platform does."""
        assert isinstance(build.options, HiradixOptions)
        self._platform = build.platform
        host_pages = build.options.host_pages(page_bytes(chain.from_iterable(build.layers.values())))
        self._memory = {
            name: ComponentMemory(build.platform, handles, host_pages) for name, handles in build.layers.items()
        }
        # The fake device judges order by whole tensors: a copy of one page and a step on another exclude each other.
        beside = build.platform.device(0).type not in ("cpu", "fakedev")
        self._overlap = beside if build.options.overlap == "auto" else build.options.overlap == "on"
        self._stream = build.platform.new_stream() if self._overlap else build.platform.current_stream()
        self._gates: dict[int, Event] = {}  # by layer: what the last start loads into it
        self._copying: deque[tuple[list[int], Event]] = deque()
        self._failed: list[int] = []
        store = (build.needs or {}).get("storage")
        self._storage = StorageCopies(store, self._memory) if isinstance(store, KVStore) else None

    def start(self, transfers: Sequence[Transfer]) -> None:
        """Launch copies in the order of layers, and hand the others to threads."""
        copies = [one for one in transfers if one.tier == "host"]
        stored = [one for one in transfers if one.tier != "host"]
        self._gates = {}
        if copies:
            ids = [one.id for one in copies]
            try:
                self._copying.append((ids, self._copy(copies)))
            except Exception:  # the cache forgets what it loaded, and serving goes on
                _log.exception("copies between device and host failed")
                self._gates = {}
                self._failed += ids
        if stored and self._storage is not None:
            self._storage.start(stored)

    def gate(self, layer: int) -> None:
        """Order the current stream behind that layer's load."""
        if (event := self._gates.get(layer)) is not None:
            event.wait()

    def finished(self) -> tuple[list[int], list[int]]:
        """In order of their start, as far as the device has come."""
        done: list[int] = []
        while self._copying and self._copying[0][1].query():
            ids, event = self._copying.popleft()
            event.synchronize(WAIT_SECONDS)  # at once: it has been passed; the host may use its memory now
            done += ids
        failed, self._failed = self._failed, []
        if self._storage is not None:
            stored, lost = self._storage.finished()
            done, failed = done + stored, failed + lost
        return done, failed

    def close(self) -> None:
        """Wait for copies and calls under way."""
        self._stream.synchronize()
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def _copy(self, transfers: Sequence[Transfer]) -> Event:
        """Launch everything; returns the mark after it."""
        loads = any(one.direction == "in" for one in transfers)
        event = self._platform.new_event()
        with self._stream:
            for layer, saved, loaded in self._by_layer(transfers):
                layer.save(saved)
                layer.load(loaded)
                if loads and self._overlap:
                    event = self._gates[layer.index] = self._platform.new_event()
                    event.record()
            if not self._gates:
                event.record()
        return event

    def _by_layer(self, transfers: Sequence[Transfer]) -> list[Layer]:
        """Layers of all components in the order in which a step comes to them."""
        layers: list[Layer] = []
        for name, memory in self._memory.items():
            saved, loaded = (
                [run for one in transfers if (one.component, one.direction) == (name, way) for run in _runs(one)]
                for way in ("out", "in")
            )
            if saved or loaded:
                layers += [(layer, saved, loaded) for layer in memory.layers]
        return sorted(layers, key=lambda one: one[0].index)


def _runs(one: Transfer) -> list[Run]:
    assert isinstance(one.there, np.ndarray), "host memory is named by page numbers"
    return runs_of(one.here, one.there)
