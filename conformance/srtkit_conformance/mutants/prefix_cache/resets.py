"""Caches that forget too little in a reset, or take too much away."""

from __future__ import annotations

from collections.abc import Mapping

from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, Remap
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.block_cache import Block, BlockCache, Path, given, path_of
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, another, around


class ResetDoesNothing(Wrapped):
    def reset(self) -> Evicted:
        return Evicted({})


class ResetLosesPages(Wrapped):
    """Forgets, and gives nothing back."""

    def reset(self) -> Evicted:
        self.inner.reset()
        return Evicted({})


class ResetFreesPinned(BlockCache):
    def reset(self) -> Evicted:
        blocks = list(self.blocks.values())
        super().reset()
        self.detached = 0
        return given(self.names, blocks)

    def unpin(self, path: Path) -> list[Block]:
        super().unpin(path)
        self.detached = 0
        return []


class ResetKeepsPinned(BlockCache):
    """Pages that were pinned at a reset never come back."""

    def release(self, lease: Lease) -> Evicted:
        super().release(lease)
        return given(self.names, [])


class ResetForgetsNoLease(BlockCache):
    """An older lease goes on storing its pages."""

    def reset(self) -> Evicted:
        evicted = super().reset()
        self.age -= 1
        return evicted

    def unpin(self, path: Path) -> list[Block]:
        for block in path.blocks:
            block.refs -= 1
        free = [block for block in path.blocks if not block.refs and self.blocks.get(block.key) is not block]
        self.detached -= len(free)
        return free


class TwoAges(BlockCache):
    """Tells a lease from before a reset by one bit, so after two resets it is current again."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        path = path_of(lease)
        if path.age % 2 == self.age % 2:
            path.age = self.age
        return super().insert(lease, key, pages, upto)


reset_does_nothing = mutant(
    "prefix_cache.reset_does_nothing",
    of="radix",
    sentence="A reset forgets nothing.",
    killed_by=("prefix_cache.reset",),
)(around(ResetDoesNothing))

reset_loses_pages = mutant(
    "prefix_cache.reset_loses_pages",
    of="radix",
    sentence="A reset gives no page back.",
    killed_by=("prefix_cache.reset",),
)(around(ResetLosesPages))

reset_frees_pinned = mutant(
    "prefix_cache.reset_frees_pinned",
    of="radix",
    sentence="A reset takes pages away from running requests.",
    killed_by=("prefix_cache.reset_pins",),
)(another(ResetFreesPinned))

reset_keeps_pinned = mutant(
    "prefix_cache.reset_keeps_pinned",
    of="radix",
    sentence="Pages that were pinned at a reset never come back.",
    killed_by=("prefix_cache.reset_pins",),
    note="too late, where the other is too early",
)(another(ResetKeepsPinned))

reset_forgets_no_lease = mutant(
    "prefix_cache.reset_forgets_no_lease",
    of="radix",
    sentence="A request from before a reset stores its pages after it.",
    killed_by=("prefix_cache.reset_leases",),
)(another(ResetForgetsNoLease))

two_ages = mutant(
    "prefix_cache.two_ages",
    of="radix",
    sentence="A lease from before two resets stores its pages again.",
    killed_by=("prefix_cache.traffic",),
)(another(TwoAges))
