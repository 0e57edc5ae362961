"""A sequence outside the columns: what is needed when it is admitted, ends or is retracted. No per-step state."""

from dataclasses import dataclass

from srtkit.spec.messages import Submit
from srtkit.spec.prefix_cache import CacheKey, Lease
from srtkit.spec.step_plan import Ints


@dataclass(eq=False)
class Sequence:
    """One request's running or waiting state.

    `request` is the client's, except for its `ids`: here they are the tokens known when it (last) entered the
    queue, `prompt_len` of them the client's.
    `order` is its place by arrival and never changes, so a retracted sequence goes back to the front.
    `ticket` stands for what is being fetched for it from the cache's storage.
    """

    request: Submit
    ids: Ints
    prompt_len: int
    order: int
    slot: int = 0
    lease: Lease | None = None
    ticket: int = 0
    retracted: bool = False

    def key(self, ids: Ints, limit: int) -> CacheKey:
        """Its cache key over `ids`, of which at most `limit` tokens can be used."""
        return CacheKey(ids, self.request.namespace, limit=limit, priority=self.request.priority)
