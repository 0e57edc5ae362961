"""The host tier as the scheduler sees it: which page of host memory holds what, and which goes next. No bytes.

A page here stands for all components: each rank has a plane of host memory for every one of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class HostPage:
    """One page of host memory. `ready`: its content is there. `moves` use it: copies in or out that are under way.

    `coming`: a transfer that brings it from storage, 0 if it comes from the device.
    """

    __slots__ = ("coming", "moves", "name", "number", "ready")

    def __init__(self, name: bytes, number: int) -> None:
        self.name = name
        self.number = number
        self.ready = False
        self.moves = self.coming = 0


class HostTier:
    """Pages by name, those used last at the end of `_pages`. A page with moves stays where it is."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: OrderedDict[bytes, HostPage] = OrderedDict()
        self._free: list[int] = []
        self._untouched = 0  # pages from here on were never given out

    def __len__(self) -> int:
        return len(self._pages)

    def get(self, name: bytes) -> HostPage | None:
        """The page of that name, ready or coming."""
        return self._pages.get(name)

    def has_own(self, name: bytes) -> bool:
        """Whether a page is there, or comes from the device. What storage may bring is not there yet."""
        page = self._pages.get(name)
        return page is not None and (page.ready or not page.coming)

    def ready_run(self, names: Iterable[bytes]) -> list[HostPage]:
        """The pages of the first names, up to the first that is not ready."""
        run: list[HostPage] = []
        for name in names:
            page = self._pages.get(name)
            if page is None or not page.ready:
                break
            run.append(page)
        return run

    def touch(self, names: Iterable[bytes]) -> None:
        """A prefix is being used. Its end goes before its beginning, without which it is worth nothing."""
        for name in reversed(list(names)):
            if name in self._pages:
                self._pages.move_to_end(name)

    def add(self, name: bytes) -> HostPage | None:
        """A page for content that is about to come; None if all that there are have moves.

        It takes the place of one that storage was to bring, which is nobody's then, and free after its last move.
        """
        if self._free:
            number = self._free.pop()
        elif self._untouched < self.total:
            number, self._untouched = self._untouched, self._untouched + 1
        else:
            victim = self._oldest_idle()
            if victim is None:
                return None
            del self._pages[victim.name]
            number = victim.number
        page = self._pages[name] = HostPage(name, number)
        return page

    def _oldest_idle(self) -> HostPage | None:
        """Pages passed over go to the end, as they are in use: the next search must not pass them again."""
        for _ in range(len(self._pages)):
            page = next(iter(self._pages.values()))
            # One that is not ready has no moves yet where several are added before they are asked for.
            if page.ready and not page.moves:
                return page
            self._pages.move_to_end(page.name)
        return None

    def moved(self, page: HostPage, ok: bool) -> None:
        """One move less. If it failed, nobody finds the page any more, and it is free after its last move."""
        page.moves -= 1
        if not ok and self._pages.get(page.name) is page:
            del self._pages[page.name]
        page.ready = page.ready or ok
        if not page.moves and self._pages.get(page.name) is not page:
            self._free.append(page.number)

    def clear(self) -> None:
        """Forget all names. Pages with moves are free after them."""
        pages, self._pages = self._pages, OrderedDict()
        self._free += [page.number for page in pages.values() if not page.moves]
