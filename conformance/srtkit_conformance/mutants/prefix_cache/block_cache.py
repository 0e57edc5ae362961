"""A second prefix cache, of another kind than the plugins': one dictionary entry per page, no tree of runs.

Legal as it stands; its methods are small so that a mutant can replace one. Slow, and for the suite only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from srtkit.spec.prefix_cache import (
    CacheEvent,
    CacheKey,
    CacheStats,
    Evicted,
    Lease,
    PrefixCache,
    PrefixCacheBuild,
    Remap,
    Transfer,
)
from srtkit.spec.step_plan import Ints

Identity = tuple[object, tuple[int, ...], tuple[tuple[int, int, bytes], ...]]
"""Of a page: what is above it, its ids, its spans."""


@dataclass(eq=False)
class Block:
    """One page of every component, and the prefix it stands for through its parent. `refs`: leases that cover it."""

    key: Identity
    parent: Block | None
    pages: tuple[int, ...]
    age: int
    refs: int = 0
    children: int = 0
    used: int = 0


@dataclass(eq=False)
class Path:
    """A lease's token: its blocks, and how often the cache had been reset."""

    blocks: list[Block] = field(default_factory=list)
    age: int = 0


class BlockCache(PrefixCache):
    """Blocks by (parent, identity of their tokens); the one used longest ago goes first, ends before beginnings."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        self.page_size = build.page_size
        self.names = tuple(component.name for component in build.components)
        self.blocks: dict[object, Block] = {}
        self.detached = 0
        self.age = 0
        self.ticks = count(1)

    def match(self, key: CacheKey) -> Lease:
        return self.lease(self.find(key, min(len(key.ids), key.limit)))

    def peek(self, keys: Sequence[CacheKey]) -> list[int]:
        return [len(self.find(key, min(len(key.ids), key.limit))) * self.page_size for key in keys]

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        path = path_of(lease)
        mine = [tuple(int(pages[name][index]) for name in self.names) for index in range(upto // self.page_size)]
        blocks = path.blocks if path.age != self.age else self.grow(path, key, mine)
        longer = self.lease(blocks, path.age)
        self.unpin(path)
        return longer, remaps(self.names, mine, blocks)

    def release(self, lease: Lease) -> Evicted:
        return given(self.names, self.unpin(path_of(lease)))

    def evictable(self, component: str) -> int:
        return sum(1 for block in self.blocks.values() if not block.refs)

    def evict(self, component: str, n: int) -> Evicted:
        freed: list[Block] = []
        while len(freed) < n:
            free = [block for block in self.blocks.values() if self.may_go(block)]
            if not free:
                break
            block = min(free, key=lambda block: block.used)
            self.forget(block)
            freed.append(block)
        return given(self.names, freed)

    def transfers(self) -> list[Transfer]:
        return []

    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        return given(self.names, [])

    def events(self) -> list[CacheEvent]:
        return []

    def reset(self) -> Evicted:
        blocks = list(self.blocks.values())
        self.blocks = {}
        self.age += 1
        self.detached += sum(1 for block in blocks if block.refs)
        return given(self.names, [block for block in blocks if not block.refs])

    def stats(self) -> CacheStats:
        pinned = self.detached + sum(1 for block in self.blocks.values() if block.refs)
        cached = self.detached + len(self.blocks)
        return CacheStats(dict.fromkeys(self.names, cached), dict.fromkeys(self.names, pinned), len(self.blocks))

    def close(self) -> None:
        self.blocks = {}

    # --- what a mutant may replace ---

    def identity(self, key: CacheKey, index: int, parent: Block | None) -> Identity:
        """What the tokens of one page are, below their parent."""
        start = index * self.page_size
        stop = start + self.page_size
        spans = tuple(
            (begin - start, end - start, digest) for begin, end, digest in key.spans if begin < stop and end > start
        )
        ids = key.ids[start:stop].tolist()
        for begin, end, _ in spans:
            ids[max(0, begin) : max(0, end)] = [-1] * (min(self.page_size, end) - max(0, begin))
        above = key.namespace if parent is None else id(parent)
        return above, tuple(ids), spans

    def find(self, key: CacheKey, usable: int) -> list[Block]:
        """The blocks of the longest prefix."""
        blocks: list[Block] = []
        for index in range(max(0, usable) // self.page_size):
            block = self.blocks.get(self.identity(key, index, blocks[-1] if blocks else None))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def grow(self, path: Path, key: CacheKey, mine: Sequence[tuple[int, ...]]) -> list[Block]:
        """The path of `mine`, with new blocks where there were none."""
        blocks = self.find(key, len(mine) * self.page_size)
        for index in range(len(blocks), len(mine)):
            parent = blocks[-1] if blocks else None
            block = Block(self.identity(key, index, parent), parent, mine[index], self.age)
            self.blocks[block.key] = block
            if parent is not None:
                parent.children += 1
            blocks.append(block)
        return blocks

    def lease(self, blocks: list[Block], age: int | None = None) -> Lease:
        """Pin blocks."""
        for block in blocks:
            block.refs += 1
            block.used = next(self.ticks)
        pages = np.array([block.pages for block in blocks], np.int32).reshape(len(blocks), len(self.names))
        by_name = {name: pages[:, column].copy() for column, name in enumerate(self.names)}
        token = Path(list(blocks), self.age if age is None else age)
        return Lease(len(blocks) * self.page_size, by_name, token)

    def unpin(self, path: Path) -> list[Block]:
        """One lease less; the blocks that a reset had forgotten and nobody holds now."""
        for block in path.blocks:
            block.refs -= 1
        free = [block for block in path.blocks if not block.refs and block.age != self.age]
        self.detached -= len(free)
        return free

    def may_go(self, block: Block) -> bool:
        """Whether it can be evicted now."""
        return not block.refs and not block.children

    def forget(self, block: Block) -> None:
        """Take it out."""
        del self.blocks[block.key]
        if block.parent is not None:
            block.parent.children -= 1


def remaps(names: Sequence[str], mine: Sequence[tuple[int, ...]], blocks: Sequence[Block]) -> list[Remap]:
    """Where the caller's pages are not the cache's."""
    return [
        Remap(name, index, own[column], block.pages[column])
        for index, (own, block) in enumerate(zip(mine, blocks, strict=False))
        for column, name in enumerate(names)
        if own[column] != block.pages[column]
    ]


def given(names: Sequence[str], blocks: Sequence[Block]) -> Evicted:
    """Pages to give back."""
    pages = np.array([block.pages for block in blocks], np.int32).reshape(len(blocks), len(names))
    return Evicted({name: pages[:, column].copy() for column, name in enumerate(names)})


def path_of(lease: Lease) -> Path:
    """A lease's token."""
    assert isinstance(lease.token, Path)
    return lease.token
