"""A state machine that drives any prefix cache as a scheduler would, against a ledger of all pages.

`cache_machine(make_cache)` gives the machine, `check_cache(make_cache)` runs it. Policies are free: it
asks only what the contract promises. It does not look inside the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from plugins.cache_radix.tests.cache_ledger import CACHE, CALLER, FREE, Ledger, Prompt, as_sets, prompt_pool
from srtkit.spec.prefix_cache import Evicted, Lease, PrefixCache, Remap

MakeCache = Callable[[int, tuple[str, ...]], PrefixCache]
"""Page size and component names → an empty cache."""

TOTAL_PAGES = 40
SETTINGS = settings(
    max_examples=30,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

Pages = dict[str, list[int]]


@dataclass(eq=False)
class Running:
    """A sequence: its prompt, its lease, its page row per component, and whether a reset came since its start."""

    prompt: Prompt
    lease: Lease
    rows: Pages = field(default_factory=dict)
    stale: bool = False


def check_cache(
    make_cache: MakeCache, page_size: int = 4, components: tuple[str, ...] = ("full",), how: settings = SETTINGS
) -> None:
    """Run the machine; raises what it finds wrong."""
    run_state_machine_as_test(cache_machine(make_cache, page_size, components), settings=how)


def cache_machine(
    make_cache: MakeCache, page_size: int = 4, components: tuple[str, ...] = ("full",)
) -> type[RuleBasedStateMachine]:
    """The machine for caches of one page size."""

    class CacheMachine(Scheduler):
        def __init__(self) -> None:
            super().__init__(make_cache(page_size, components), page_size, components)

    return CacheMachine


any_prompt = st.integers(0, len(prompt_pool(1)) - 1)
any_index = st.integers(0, 7)
any_share = st.integers(0, 8)


class Scheduler(RuleBasedStateMachine):
    """Rules are what a scheduler does; every answer of the cache goes through a check against the ledger."""

    def __init__(self, cache: PrefixCache, page_size: int, components: tuple[str, ...]) -> None:
        super().__init__()
        self.cache = cache
        self.page_size = page_size
        self.ledgers = {name: Ledger(TOTAL_PAGES) for name in components}
        self.prompts = prompt_pool(page_size)
        self.running: list[Running] = []
        self.forgotten: dict[str, set[int]] = {name: set() for name in components}

    # --- what a scheduler does ---

    @rule(which=any_prompt, limit=st.sampled_from(["all but one", "all", "half", "none"]))
    def start(self, which: int, limit: str = "all but one") -> None:
        """Admit a sequence: match, then own pages for the rest; admitted only if they can be had."""
        prompt = self.prompts[which % len(self.prompts)]
        n = len(prompt.key.ids)
        usable = {"all": n, "all but one": n - 1, "half": n // 2, "none": 0}[limit]
        lease = self.matched(prompt, usable)
        one = Running(prompt, lease)
        missing = -(-n // self.page_size) - lease.length // self.page_size
        for name, ledger in self.ledgers.items():
            if ledger.count(FREE) < missing:
                self.evicted(name, missing - ledger.count(FREE))
        if any(ledger.count(FREE) < missing for ledger in self.ledgers.values()):
            self.released(lease)
            return
        for name, ledger in self.ledgers.items():
            one.rows[name] = lease.pages[name].tolist() + ledger.take(missing)
            for page, content in list(zip(one.rows[name], prompt.contents, strict=False))[len(lease.pages[name]) :]:
                ledger.write(page, content)
        self.running.append(one)

    @precondition(lambda self: self.running)
    @rule(index=any_index, share=any_share, use_theirs=st.booleans())
    def commit_chunk(self, index: int, share: int, use_theirs: bool) -> None:
        """Give the cache what is committed so far."""
        one = self.running[index % len(self.running)]
        n = len(one.prompt.key.ids)
        self.inserted(one, one.lease.length + (n - one.lease.length) * share // 8, use_theirs)

    @precondition(lambda self: self.running)
    @rule(index=any_index, keep=st.booleans())
    def end(self, index: int, keep: bool) -> None:
        """A sequence ends, or is aborted: its own pages are free then."""
        one = self.running.pop(index % len(self.running))
        if keep:
            self.inserted(one, len(one.prompt.key.ids), use_theirs=False)
        for name, ledger in self.ledgers.items():
            ledger.drop([page for page in one.rows[name] if ledger.owner[page] == CALLER], CALLER)
        self.released(one.lease)

    @rule(which=any_prompt, step=st.sampled_from([0, 1, -1]), share=any_share, use_theirs=st.booleans())
    def run_two_together(self, which: int, step: int, share: int, use_theirs: bool) -> None:
        """Two near prompts start before either is cached; one commits all, the other in two chunks."""
        before = len(self.running)
        self.start(which)
        self.start(which + step)
        if len(self.running) == before + 2:
            self.commit_chunk(before, share, use_theirs)
            self.commit_chunk(before + 1, 8, use_theirs)
            self.commit_chunk(before, 8, use_theirs)

    @rule(n=st.integers(0, TOTAL_PAGES + 1))
    def evict(self, n: int) -> None:
        """Make room."""
        for name in self.ledgers:
            self.evicted(name, n)

    @rule(which=any_prompt)
    def pin_and_press(self, which: int) -> None:
        """Two leases on one path; pressure; release one; pressure; the other must stand all the time."""
        prompt = self.prompts[which]
        n = len(prompt.key.ids)
        first, second = self.matched(prompt, n), self.matched(prompt, n)
        self.press()
        self.check_lease(first, prompt)
        again = self.matched(prompt, n)
        assert again.length == first.length, "a pinned prefix can no longer be matched"
        self.released(again)
        self.released(first)
        self.press()
        self.check_lease(second, prompt)
        self.released(second)

    @rule()
    def reset(self) -> None:
        """Flush: everything that is not pinned comes back at once, nothing matches any more."""
        pinned = {name: self.pinned(name) for name in self.ledgers}
        given = self.given_back(self.cache.reset())
        for one in self.running:
            one.stale = True
        for name, ledger in self.ledgers.items():
            self.forgotten[name] = ledger.owned(CACHE)
            assert self.forgotten[name] <= pinned[name], "reset kept a page that nobody pins"
            assert not given.get(name, set()) & pinned[name]
        assert self.cache.peek([prompt.key for prompt in self.prompts]) == [0] * len(self.prompts)

    @rule()
    def look_everywhere(self) -> None:
        """Every cached page can be reached through some prompt, else it is lost for good."""
        seen: Pages = {name: [] for name in self.ledgers}
        for prompt in self.prompts:
            lease = self.matched(prompt, len(prompt.key.ids))
            for name in self.ledgers:
                seen[name].extend(lease.pages[name].tolist())
            self.released(lease)
        for name, ledger in self.ledgers.items():
            lost = ledger.owned(CACHE) - self.forgotten[name] - set(seen[name])
            assert not lost, f"cached pages that no prompt reaches: {lost}"

    # --- what must hold after every step ---

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        """The cache counts what it was given."""
        stats = self.cache.stats()
        for name, ledger in self.ledgers.items():
            assert stats.cached_pages[name] == ledger.count(CACHE), "the cache lost count of its pages"
            assert stats.pinned_pages[name] <= stats.cached_pages[name]

    @invariant()
    def leases_stand(self) -> None:
        """What was lent is still there."""
        for one in self.running:
            self.check_lease(one.lease, one.prompt)

    @invariant()
    def evictable_is_possible(self) -> None:
        """It does not promise what is pinned."""
        for name, ledger in self.ledgers.items():
            unpinned = ledger.owned(CACHE) - self.pinned(name)
            assert 0 <= self.cache.evictable(name) <= len(unpinned), "promises more than is unpinned"

    def teardown(self) -> None:
        """When all have ended, every page can be had back."""
        self.look_everywhere()
        while self.running:
            self.end(0, keep=False)
        self.press()
        for ledger in self.ledgers.values():
            assert ledger.count(FREE) == TOTAL_PAGES, "pages stay in the cache that nobody pins"
        self.cache.close()

    # --- calls with their checks ---

    def matched(self, prompt: Prompt, limit: int) -> Lease:
        key = replace(prompt.key, limit=limit)
        expected = self.cache.peek([key])
        lease = self.cache.match(key)
        assert [lease.length] == expected, "match and peek disagree"
        assert lease.length <= max(limit, 0), "longer than the caller can use"
        assert lease.length % self.page_size == 0, "not whole pages"
        self.check_lease(lease, prompt)
        return lease

    def check_lease(self, lease: Lease, prompt: Prompt) -> None:
        count = lease.length // self.page_size
        for name, ledger in self.ledgers.items():
            pages = lease.pages[name].tolist()
            assert len(pages) == count, "pages do not cover the length"
            assert all(ledger.owner[page] == CACHE for page in pages), "a leased page is not the cache's"
            found = [ledger.content[page] for page in pages]
            assert found == list(prompt.contents[:count]), "a page does not hold exactly this prefix"

    def inserted(self, one: Running, upto: int, use_theirs: bool) -> None:
        old = one.lease
        owned = {name: ledger.owned(CACHE) for name, ledger in self.ledgers.items()}
        rows = {name: np.array(row, np.int32) for name, row in one.rows.items()}
        lease, remaps = self.cache.insert(old, replace(one.prompt.key, limit=upto), rows, upto)
        assert old.length <= lease.length <= upto, "the new lease is shorter than the old, or not committed"
        assert lease.length == old.length or not one.stale, "takes pages from before the reset"
        one.lease = lease
        kept = {(remap.component, remap.index) for remap in remaps}
        assert len(kept) == len(remaps), "a page was remapped twice"
        for name, ledger in self.ledgers.items():
            for index, page in enumerate(lease.pages[name].tolist()):
                mine = one.rows[name][index]
                if (name, index) not in kept:
                    assert page == mine, "the cache serves another page and does not say so"
                    if mine not in owned[name]:
                        ledger.to_cache(mine)
        for remap in remaps:
            self.check_remap(one, remap, owned[remap.component])
            if use_theirs:
                one.rows[remap.component][remap.index] = remap.theirs
                self.ledgers[remap.component].drop([remap.mine], CALLER)
        self.check_lease(lease, one.prompt)

    def check_remap(self, one: Running, remap: Remap, owned: set[int]) -> None:
        assert remap.mine == one.rows[remap.component][remap.index] != remap.theirs
        assert remap.index < one.lease.length // self.page_size
        assert remap.theirs == one.lease.pages[remap.component][remap.index]
        assert remap.theirs in owned, "remaps to a page that was not the cache's"
        assert self.ledgers[remap.component].owner[remap.mine] == CALLER, "hands back a page it owned already"

    def released(self, lease: Lease) -> None:
        given = self.given_back(self.cache.release(lease))
        for name, pages in given.items():
            assert pages <= self.forgotten[name], "release gave back a page that can still be matched"
            self.forgotten[name] -= pages

    def evicted(self, name: str, n: int) -> None:
        before = self.cache.evictable(name)
        freed = self.given_back(self.cache.evict(name, n)).get(name, set())
        assert len(freed) >= min(n, before), "evicted fewer pages than it said it could"
        assert self.cache.evictable(name) == before - len(freed), "evictable does not follow"

    def press(self) -> None:
        for name in self.ledgers:
            while (n := self.cache.evictable(name)) > 0:
                self.evicted(name, n)

    def given_back(self, evicted: Evicted) -> dict[str, set[int]]:
        given = dict(as_sets(evicted))
        for name, pages in given.items():
            # `drop` refuses what is not the cache's; the invariant `leases_stand` finds what was pinned.
            assert not pages & self.pinned(name), "a pinned page was freed"
            self.ledgers[name].drop(pages, CACHE)
        return given

    def pinned(self, name: str) -> set[int]:
        return {page for one in self.running for page in one.lease.pages[name].tolist()}
