"""Page accounting of one component. Knows page ids and in which state each is; no tokens, no sequences.

Every page but page 0 (padding scratch) is in exactly one state: free, cached (the prefix cache owns it),
in use (a running sequence owns it) or retiring (an ended sequence's, until its last step is committed).
The counts always add up to the total; pins are the cache's business.
"""

import numpy as np

from srtkit.spec.errors import OutOfMemory
from srtkit.spec.step_plan import Ints


class PagePool:
    """The free list and the counts of one component. Pages are 1 … total; page 0 never moves."""

    def __init__(self, component: str, total: int) -> None:
        self.component = component
        self.total = total
        self._free = np.arange(total, 0, -1, dtype=np.int32)  # a stack: the end is taken first
        self.free = total
        self.cached = 0
        self.moving = 0  # of the cached ones, those that come back when they have been copied to a slower tier
        self.in_use = 0
        self.retiring = 0
        self.touched = 0  # the highest page ever taken: pages above it have never been written

    def take(self, n: int) -> Ints:
        """Free → in use. Raises `OutOfMemory` when fewer are free: the caller evicts or retracts first."""
        if n > self.free:
            raise OutOfMemory(f"pages:{self.component}", f"{n} pages wanted, {self.free} of {self.total} free")
        self.free -= n
        self.in_use += n
        pages: Ints = self._free[self.free : self.free + n][::-1].copy()
        self.touched = max(self.touched, int(pages.max(initial=0)))
        return pages

    def to_cache(self, n: int) -> None:
        """In use → cached: the prefix cache took n pages of a sequence."""
        self.in_use -= n
        self.cached += n

    def from_cache(self, pages: Ints) -> None:
        """Cached → free: the prefix cache evicted them."""
        self.cached -= len(pages)
        self._push(pages)

    def put_back(self, pages: Ints) -> None:
        """In use → free: no step that has been launched touches them any more."""
        self.in_use -= len(pages)
        self._push(pages)

    def retire(self, n: int) -> None:
        """In use → retiring: steps in flight may still touch them."""
        self.in_use -= n
        self.retiring += n

    def retired(self, pages: Ints) -> None:
        """Retiring → free: the last step that touched them is committed."""
        self.retiring -= len(pages)
        self._push(pages)

    def counts(self) -> dict[str, int]:
        """Pages by state; those that move are cached ones."""
        moving = {"cached": self.cached, "moving": self.moving}
        return {"total": self.total, "free": self.free, "in_use": self.in_use, "retiring": self.retiring, **moving}

    def _push(self, pages: Ints) -> None:
        self._free[self.free : self.free + len(pages)] = pages[::-1]
        self.free += len(pages)
