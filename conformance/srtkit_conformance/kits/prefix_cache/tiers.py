"""A caller that plays the mover, too: it copies contents between device, host and store, or fails to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCache, Transfer
from srtkit.spec.step_plan import Ints
from srtkit.spec.tiers import pack_transfers, unpack_transfers
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import Prompt


class TieredCaller(Caller):
    """A caller that knows what lies where: contents by component and page of the host, and by key of the store."""

    def __init__(self, cache: PrefixCache, page_size: int, components: Sequence[Component], total: int) -> None:
        super().__init__(cache, page_size, components, total)
        self.host: dict[tuple[str, int], int] = {}
        self.storage: dict[bytes, int] = {}
        self.moved = 0

    def acknowledge(self, failed: bool = False) -> None:
        self.run(lambda one: failed)

    def run(self, fails: Callable[[Transfer], bool] = lambda one: False) -> None:
        """Take the cache's transfers, do them, and tell the outcome."""
        names = list(self.ledgers)
        asked, self.flying = [*self.flying, *self.cache.transfers()], []
        done: list[int] = []
        failed: list[int] = []
        for one in unpack_transfers(pack_transfers(asked, names), names):
            (failed if fails(one) or not self._copied(one) else done).append(one.id)
        self.moved += len(done)
        self.take_back(self.cache.complete(done, failed))

    def _copied(self, one: Transfer) -> bool:
        device = self.ledgers[one.component].content
        for here, there in zip(one.here.tolist(), one.there, strict=True):
            if one.tier == "storage" and one.direction == "out":
                self.storage[there] = self.host[one.component, here]
            elif one.tier == "storage":
                if there not in self.storage:
                    return False
                self.host[one.component, here] = self.storage[there]
            elif one.direction == "out":
                self.host[one.component, int(there)] = device[here]
            else:
                device[here] = self.host[one.component, int(there)]
        return True

    def in_flight(self, name: str) -> set[int]:
        between = [one for one in self.flying if one.tier == "host" and one.component == name]
        return {page for one in between for page in one.here.tolist()}

    def load(self, prompt: Prompt) -> int:
        """Match, load what is pending if there are pages, check, release; the tokens that were loaded."""
        lease = self.match(prompt)
        n = lease.pending // self.page_size
        if n == 0 or any(ledger.count("free") < n for ledger in self.ledgers.values()):
            self.release(lease)
            return 0
        length = lease.length + n * self.page_size
        lease = self.cache.load(lease, self.rubbish(n))
        expect(lease.length == length, "load returned another length", observed=lease.length, limit=length)
        self.run()
        self.check_lease(lease, prompt)
        self.release(lease)
        return n * self.page_size

    def rubbish(self, n: int) -> dict[str, Ints]:
        """Free pages for a load, which are the cache's from here on."""
        pages = {}
        for name, ledger in self.ledgers.items():
            own = ledger.take(n)
            pages[name] = np.array(own, np.int32)
            for page in own:
                ledger.to_cache(page)
                ledger.content[page] = -1
        return pages
