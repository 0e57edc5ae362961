"""A sequence outside the columns: what is needed when it is admitted, ends or is retracted. No per-step state."""

from dataclasses import dataclass, field

import numpy as np

from srtkit.spec.messages import Submit
from srtkit.spec.prefix_cache import CacheKey, Lease
from srtkit.spec.step_plan import EMPTY, Ints


@dataclass(eq=False)
class Sequence:
    """One request's running or waiting state.

    `request` is the client's, except for its `ids`: here they are the tokens known when it (last) entered the
    queue, `prompt_len` of them the client's.
    `order` is its place by arrival and never changes, so a retracted sequence goes back to the front.
    Of its page-table row, indices below `lease_pages` are the cache's, except those in `mine`:
    pages it computed although the cache had them already. All others are its own.
    """

    request: Submit
    ids: Ints
    prompt_len: int
    order: int
    slot: int = 0
    lease: Lease | None = None
    lease_pages: int = 0
    mine: Ints = field(default_factory=lambda: EMPTY)
    retracted: bool = False

    def key(self, ids: Ints, limit: int) -> CacheKey:
        """Its cache key over `ids`, of which at most `limit` tokens can be used."""
        return CacheKey(ids, self.request.namespace, limit=limit, priority=self.request.priority)

    def own_indices(self, n_pages: int) -> Ints:
        """Page-table indices whose page is this sequence's own."""
        tail = np.arange(self.lease_pages, n_pages, dtype=np.int32)
        return np.concatenate((self.mine, tail)) if len(self.mine) else tail
