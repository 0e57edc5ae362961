"""Caches that take windows and snapshots for what they are not, or mix up the budgets of components."""

from __future__ import annotations

from collections.abc import Iterable

from srtkit.spec.prefix_cache import CacheKey, Evicted, PrefixCacheBuild
from srtkit_conformance.mutant import mutant, variant
from srtkit_conformance.mutants.prefix_cache.mixed_cache import MixedCache, Page, Prefix, of
from srtkit_conformance.mutants.prefix_cache.wrapping import another


class LastPageOnly(MixedCache):
    """Looks at the last page of a window, and not at those before it."""

    def find(self, key: CacheKey) -> int:
        longest = max(0, min(len(key.ids), key.limit)) // self.page_size
        for pages in range(longest, 0, -1):
            wanted = [
                (name, i)
                for name, one in self.components.items()
                for i in (self.needed(name, pages) if one.reach == "all" else range(pages - 1, pages))
            ]
            if all(self.at(name, key, i) for name, i in wanted):
                return pages
        return 0


class WholeWindow(MixedCache):
    """Wants every page of a prefix, as if the window had no end."""

    def find(self, key: CacheKey) -> int:
        pages = super().find(key)
        windows = [name for name, one in self.components.items() if one.reach == "window"]
        while pages and not all(self.at(name, key, i) for name in windows for i in range(pages)):
            pages -= 1
        return pages


class PinsWholePath(MixedCache):
    """Names the pages of the window, and pins all of the path."""

    def may_go(self, page: Page) -> bool:
        return super().may_go(page) and not self.held(page)

    def evictable(self, component: str) -> int:
        return sum(1 for page in of(self.pages.values(), component) if not page.pins and not self.held(page))

    def held(self, page: Page) -> bool:
        """Whether its prefix is part of one that is pinned."""
        pinned = [one for one in self.pages.values() if one.pins and one.prefix[0] == page.prefix[0]]
        return any(one.prefix[1][: len(page.prefix[1])] == page.prefix[1] for one in pinned)


class PinsNoWindow(MixedCache):
    """Lends pages of a window, and lets them go all the same."""

    def may_go(self, page: Page) -> bool:
        return super().may_go(page) or self.components[page.name].reach == "window"

    def evictable(self, component: str) -> int:
        window = self.components[component].reach == "window"
        return len(of(self.pages.values(), component)) if window else super().evictable(component)


class TakesHoles(MixedCache):
    """Takes page 0 for a page."""

    def keep(self, name: str, prefix: Prefix, mine: int) -> int:
        page = self.pages.setdefault((name, prefix), Page(name, prefix, mine))
        return page.id


class NeverFills(MixedCache):
    """A window page that it lost it does not take again, and leaves with the caller without a word."""

    def __init__(self, build: PrefixCacheBuild) -> None:
        super().__init__(build)
        self.seen: set[tuple[str, Prefix]] = set()

    def keep(self, name: str, prefix: Prefix, mine: int) -> int:
        window = self.components[name].reach == "window"
        known = window and (name, prefix) in self.seen and (name, prefix) not in self.pages
        self.seen.add((name, prefix))
        return mine if known else super().keep(name, prefix, mine)


class RoomFromPages(MixedCache):
    """Makes room in any component by taking the ends of prefixes."""

    def evict(self, component: str, n: int) -> Evicted:
        return super().evict(self.all[0] if self.all else component, n)


class LeavesTheRest(MixedCache):
    """The end of a prefix goes, and what stands beside it stays."""

    def drop(self, page: Page) -> list[Page]:
        del self.pages[page.name, page.prefix]
        return [page]


class AnySnapshot(MixedCache):
    """Goes on from the nearest snapshot, as if it were of the length that it lends."""

    def at(self, name: str, key: CacheKey, index: int) -> Page | None:
        found = super().at(name, key, index)
        if found is None and index and self.components[name].kind == "slot":
            return super().at(name, key, index - 1)
        return found


class StateNotNeeded(MixedCache):
    """Finds a prefix where no snapshot stands."""

    def needed(self, name: str, pages: int) -> Iterable[int]:
        return () if self.components[name].kind == "slot" else super().needed(name, pages)


class FreesPinnedStates(MixedCache):
    """Room for a state is made whoever holds one."""

    def may_go(self, page: Page) -> bool:
        return super().may_go(page) or self.components[page.name].kind == "slot"

    def evictable(self, component: str) -> int:
        slot = self.components[component].kind == "slot"
        return len(of(self.pages.values(), component)) if slot else super().evictable(component)


class NewerState(MixedCache):
    """The newer snapshot takes the place of the older one, which nobody owns any more."""

    def keep(self, name: str, prefix: Prefix, mine: int) -> int:
        if self.components[name].kind == "slot" and mine:
            self.pages.pop((name, prefix), None)
        return super().keep(name, prefix, mine)


mixed = variant("prefix_cache.mixed", of="mamba", sentence="A dictionary of pages of every reach.")(another(MixedCache))

last_page_only = mutant(
    "prefix_cache.last_page_only",
    of="mamba",
    sentence="Does not see that a page of the window is missing.",
    killed_by=("prefix_cache.window_match",),
)(another(LastPageOnly))

whole_window = mutant(
    "prefix_cache.whole_window",
    of="mamba",
    sentence="Finds a prefix only if no page of the window's component was ever lost.",
    killed_by=("prefix_cache.window_match",),
    note="too short a match where last_page_only gives too long a one",
)(another(WholeWindow))

pins_whole_path = mutant(
    "prefix_cache.pins_whole_path",
    of="mamba",
    sentence="Pins pages that no window can see.",
    killed_by=("prefix_cache.window_pins",),
)(another(PinsWholePath))

pins_no_window = mutant(
    "prefix_cache.pins_no_window",
    of="mamba",
    sentence="Room in a window is made whoever holds its pages.",
    killed_by=("prefix_cache.window_pins",),
)(another(PinsNoWindow))

takes_holes = mutant(
    "prefix_cache.takes_holes",
    of="mamba",
    sentence="Takes page 0 where the caller has let a page go.",
    killed_by=("prefix_cache.window_holes",),
    note="a page that is none counts as evictable, like a pinned one",
)(another(TakesHoles))

never_fills = mutant(
    "prefix_cache.never_fills",
    of="mamba",
    sentence="Does not take a page that it lost before.",
    killed_by=("prefix_cache.window_holes",),
)(another(NeverFills))

room_from_pages = mutant(
    "prefix_cache.room_from_pages",
    of="mamba",
    sentence="Frees full pages to make room for others.",
    killed_by=("prefix_cache.window_budget", "prefix_cache.snapshot_budget"),
)(another(RoomFromPages))

leaves_the_rest = mutant(
    "prefix_cache.leaves_the_rest",
    of="mamba",
    sentence="Keeps window pages and snapshots of prefixes that are gone.",
    killed_by=("prefix_cache.window_budget", "prefix_cache.snapshot_budget"),
)(another(LeavesTheRest))

any_snapshot = mutant(
    "prefix_cache.any_snapshot",
    of="mamba",
    sentence="Lends the state of a shorter prefix.",
    killed_by=("prefix_cache.snapshot_match",),
)(another(AnySnapshot))

state_not_needed = mutant(
    "prefix_cache.state_not_needed",
    of="mamba",
    sentence="Finds prefixes without a snapshot.",
    killed_by=("prefix_cache.snapshot_match",),
)(another(StateNotNeeded))

frees_pinned_states = mutant(
    "prefix_cache.frees_pinned_states",
    of="mamba",
    sentence="Gives back a snapshot that was just lent.",
    killed_by=("prefix_cache.snapshot_pins",),
)(another(FreesPinnedStates))

newer_state = mutant(
    "prefix_cache.newer_state",
    of="mamba",
    sentence="Replaces a snapshot without giving the old one back.",
    killed_by=("prefix_cache.snapshot_owner",),
)(another(NewerState))
