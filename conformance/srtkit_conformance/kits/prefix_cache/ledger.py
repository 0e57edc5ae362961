"""Who owns each page of one component, and what stands in it. Every page has exactly one owner."""

from __future__ import annotations

from collections.abc import Iterable

from srtkit_conformance.check import expect

FREE = "free"
CALLER = "caller"
CACHE = "cache"


class Ledger:
    """The pages 1 … `total` of one component. Page 0 is never handed out: it is the scratch page."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.owner = dict.fromkeys(range(1, total + 1), FREE)
        self.content: dict[int, int] = {}

    def owned(self, owner: str) -> set[int]:
        """The pages in that state."""
        return {page for page, one in self.owner.items() if one == owner}

    def count(self, owner: str) -> int:
        """How many pages are in that state."""
        return sum(1 for one in self.owner.values() if one == owner)

    def take(self, n: int) -> list[int]:
        """`n` free pages for the caller."""
        pages = sorted(self.owned(FREE))[:n]
        assert len(pages) == n, "a check asked for more pages than are free"
        for page in pages:
            self.owner[page] = CALLER
        return pages

    def write(self, page: int, content: int) -> None:
        """The caller fills a page of its own."""
        assert self.owner[page] == CALLER, "a check writes a page that the caller does not own"
        self.content[page] = content

    def to_cache(self, page: int) -> None:
        """The caller's page becomes the cache's."""
        expect(
            self.owner.get(page) == CALLER,
            f"the cache took page {page}, which was not the caller's to give",
            observed=self.owner.get(page, "no such page"),
            limit=CALLER,
        )
        self.owner[page] = CACHE

    def drop(self, pages: Iterable[int], owner: str) -> None:
        """The owner gives pages back."""
        for page in pages:
            expect(
                self.owner.get(page) == owner,
                f"the {owner} gave back page {page}, which it did not own",
                observed=self.owner.get(page, "no such page"),
                limit=owner,
            )
            self.owner[page] = FREE
            self.content.pop(page, None)
