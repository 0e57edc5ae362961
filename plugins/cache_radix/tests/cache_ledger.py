"""The truth a prefix cache is held against: prompts that overlap, and who owns each page with which content.

Knows the contract's words only. Content is a number that stands for namespace and token identities from
position 0 through the page's end, so equal numbers mean that one page may serve for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from srtkit.spec.prefix_cache import CacheKey, Evicted
from srtkit.spec.step_plan import Ints

FREE = "free"
CALLER = "caller"
CACHE = "cache"


@dataclass(frozen=True)
class Prompt:
    """A key and the content number of each of its whole pages."""

    key: CacheKey
    contents: tuple[int, ...]


def prompt_pool(page_size: int) -> list[Prompt]:
    """Prompts that share, nearly share, and must not share their pages; the nearest stand side by side."""
    page = page_size
    half = page // 2
    story = np.arange(1, 5 * page + 1, dtype=np.int32)
    other = story + np.int32(7 * page)
    zeros = np.zeros(page, np.int32)
    again = np.tile(story[:page], 4)
    late = (3 * page, 4 * page, b"image-a")
    return _numbered(
        page,
        [
            _key([story[:half]]),
            _key([story[: 3 * page + half]]),
            # A partial page filled up with padding must not pass for a whole one.
            _key([story[: 3 * page + half], zeros[: page - half], other[:page]]),
            _key([story[: 3 * page + half], other[:page]]),
            _key([story[: 2 * page], other[: 2 * page]]),
            _key([story]),
            _key([story], namespace=b"adapter"),
            _key([story[: 3 * page]], namespace=b"adapter\0"),
            _key([story], spans=((page, 2 * page, b"image-a"),)),
            _key([story], spans=((page, 2 * page, b"image-b"),)),
            _key([story], spans=((page, 3 * page, b"image-b"),)),
            _key([story], spans=((half, page + half + 1, b"image-a"), late)),
            _key([story], spans=((half, page + half + 1, b"image-b"), late)),
            _key([other[: 2 * page], story[: 2 * page]]),
            _key([again]),
            _key([again[: 2 * page], story[page : 3 * page]]),
        ],
    )


def _key(parts: Sequence[Ints], namespace: bytes = b"", spans: tuple[tuple[int, int, bytes], ...] = ()) -> CacheKey:
    return CacheKey(np.concatenate(parts), namespace, spans)


def _numbered(page_size: int, keys: Iterable[CacheKey]) -> list[Prompt]:
    numbers: dict[object, int] = {}
    prompts = []
    for key in keys:
        identities: list[object] = key.ids.tolist()
        for start, stop, digest in key.spans:
            identities[start:stop] = [(digest, stop - start, offset) for offset in range(stop - start)]
        before, contents = numbers.setdefault(key.namespace, len(numbers) + 1), []
        for end in range(page_size, len(identities) + 1, page_size):
            before = numbers.setdefault((before, tuple(identities[end - page_size : end])), len(numbers) + 1)
            contents.append(before)
        prompts.append(Prompt(key, tuple(contents)))
    return prompts


class Ledger:
    """The pages of one component: every one has exactly one owner."""

    def __init__(self, total: int) -> None:
        # Page 0 is never handed out: it is the scratch page.
        self.owner = dict.fromkeys(range(1, total + 1), FREE)
        self.content: dict[int, int] = {}

    def count(self, owner: str) -> int:
        """Pages in that state."""
        return sum(1 for one in self.owner.values() if one == owner)

    def owned(self, owner: str) -> set[int]:
        """Pages in that state."""
        return {page for page, one in self.owner.items() if one == owner}

    def take(self, n: int) -> list[int]:
        """`n` free pages for a caller."""
        pages = sorted(self.owned(FREE))[:n]
        assert len(pages) == n, "the test asked for more than is free"
        for page in pages:
            self.owner[page] = CALLER
        return pages

    def write(self, page: int, content: int) -> None:
        """The caller fills a page of its own."""
        assert self.owner[page] == CALLER, "a caller writes a page it does not own"
        self.content[page] = content

    def to_cache(self, page: int) -> None:
        """The caller's page becomes the cache's."""
        assert self.owner[page] == CALLER, f"page {page} is {self.owner[page]}'s and cannot be inserted"
        self.owner[page] = CACHE

    def drop(self, pages: Iterable[int], owner: str) -> None:
        """The owner gives pages back."""
        for page in pages:
            assert self.owner.get(page) == owner, f"page {page} given back by the {owner}, but {self.owner.get(page)}"
            self.owner[page] = FREE
            self.content.pop(page, None)


def as_sets(evicted: Evicted) -> Mapping[str, set[int]]:
    """The pages given back, per component; each at most once."""
    sets = {}
    for name, pages in evicted.pages.items():
        sets[name] = set(pages.tolist())
        assert len(sets[name]) == len(pages), "a page was given back twice"
    return sets
