"""Plays the scheduler over any prefix cache: every answer is held against the ledgers. Does not look inside.

Policies are free: it asks only what the contract promises, and nothing of it depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, Remap, Transfer
from srtkit.spec.step_plan import Ints
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.ledger import CACHE, CALLER, FREE, Ledger
from srtkit_conformance.kits.prefix_cache.prompts import Prompt

Pages = dict[str, list[int]]


@dataclass(eq=False)
class Running:
    """A sequence: its prompt, its lease, its page row per component, and whether a reset came since its start."""

    prompt: Prompt
    lease: Lease
    rows: Pages = field(default_factory=dict)
    stale: bool = False


class Caller:
    """One cache, the pages it may be given, the sequences that run. Raises `Failed` for any broken promise."""

    def __init__(self, cache: PrefixCache, page_size: int, components: Sequence[str], total: int = 40) -> None:
        self.cache = cache
        self.page_size = page_size
        self.ledgers = {name: Ledger(total) for name in components}
        self.running: list[Running] = []
        self.flying: list[Transfer] = []
        self.detached: dict[str, set[int]] = {name: set() for name in components}
        """Pages that a reset left to leases from before it."""

    # --- what a scheduler does ---

    def start(self, prompt: Prompt, usable: int | None = None) -> Running | None:
        """Admit a sequence: match, then own pages for the rest. None if they cannot be had."""
        lease = self.match(prompt, len(prompt) if usable is None else usable)
        one = Running(prompt, lease)
        missing = -(-len(prompt) // self.page_size) - lease.length // self.page_size
        for name, ledger in self.ledgers.items():
            if ledger.count(FREE) < missing:
                self.evict(name, missing - ledger.count(FREE))
                self.acknowledge()
        if any(ledger.count(FREE) < missing for ledger in self.ledgers.values()):
            self.release(lease)
            return None
        for name, ledger in self.ledgers.items():
            own = ledger.take(missing)
            one.rows[name] = lease.pages[name].tolist() + own
            for page, content in zip(own, prompt.contents[len(one.rows[name]) - missing :], strict=False):
                ledger.write(page, content)
        self.running.append(one)
        return one

    def commit(self, one: Running, upto: int, use_theirs: bool = False) -> list[Remap]:
        """Offer what is committed of a sequence; `use_theirs`: go on with the cache's page where it had one."""
        old = one.lease
        owned = {name: ledger.owned(CACHE) for name, ledger in self.ledgers.items()}
        rows = {name: np.array(row, np.int32) for name, row in one.rows.items()}
        one.lease, remaps = self.cache.insert(old, replace(one.prompt.key, limit=upto), rows, upto)
        got = one.lease.length
        expect(old.length <= got, "insert returned a shorter lease", observed=got, limit=old.length)
        expect(got <= upto, "insert took tokens that are not committed", observed=got, limit=upto)
        expect(got == old.length or not one.stale, "insert took pages under a lease from before a reset")
        self._settle(one, remaps, owned)
        for remap in remaps if use_theirs else ():
            one.rows[remap.component][remap.index] = remap.theirs
            self.ledgers[remap.component].drop([remap.mine], CALLER)
        self.check_lease(one.lease, one.prompt)
        return remaps

    def end(self, one: Running, keep: bool = True) -> None:
        """A sequence ends; `keep`: all of it is offered first. Its own pages are free then."""
        self.running.remove(one)
        if keep:
            self.commit(one, len(one.prompt))
        for name, ledger in self.ledgers.items():
            ledger.drop([page for page in one.rows[name] if ledger.owner[page] == CALLER], CALLER)
        self.release(one.lease)

    def store(self, *prompts: Prompt) -> None:
        """Run each prompt from admission to end."""
        for prompt in prompts:
            one = self.start(prompt)
            assert one is not None, "a check has too few pages"
            self.end(one)

    def evict(self, name: str, n: int) -> int:
        """Make room; returns how many pages of the component were given back, or will be through an ack."""
        before = self.cache.evictable(name)
        evicted = self.cache.evict(name, n)
        freed = len(self.take_back(evicted)[name]) + evicted.pending
        expect(freed >= min(n, before), f"evict({n}) freed too few pages", observed=freed, limit=min(n, before))
        self.flying += self.cache.transfers()
        return freed

    def press(self) -> None:
        """Free whatever can be freed."""
        for name in self.ledgers:
            while (n := self.cache.evictable(name)) > 0:
                self.evict(name, n)
        self.acknowledge()

    def acknowledge(self, failed: bool = False) -> None:
        """The outcome of all transfers arrives. Loads always fail: nothing here stands in a tier."""
        for one in self.flying:
            if one.direction == "out":
                there = all(self.ledgers[one.component].owner.get(page) == CACHE for page in one.here.tolist())
                expect(there, "a transfer's source page was given back before its outcome was known")
        bad = [one.id for one in self.flying if failed or one.direction == "in"]
        done = [one.id for one in self.flying if one.id not in bad]
        self.flying = []
        self.take_back(self.cache.complete(done, bad))

    def reset(self) -> None:
        """Flush: what is not pinned comes back at once."""
        pinned = {name: self.pinned(name) for name in self.ledgers}
        self.take_back(self.cache.reset())
        for one in self.running:
            one.stale = True
        for name, ledger in self.ledgers.items():
            in_flight = self.in_flight(name)
            self.detached[name] = ledger.owned(CACHE) - in_flight
            kept = self.detached[name] - pinned[name]
            expect(not kept, "reset kept pages that nobody pins", observed=sorted(kept))

    # --- calls with their checks ---

    def match(self, prompt: Prompt, limit: int | None = None) -> Lease:
        """A pinned prefix that is sound and within the limit."""
        usable = len(prompt) if limit is None else limit
        lease = self.cache.match(replace(prompt.key, limit=usable))
        expect(lease.length <= max(usable, 0), "match passes the key's limit", observed=lease.length, limit=usable)
        self.check_lease(lease, prompt)
        return lease

    def release(self, lease: Lease) -> None:
        """End a lease; only pages that a reset had detached may come back."""
        for name, pages in self.take_back(self.cache.release(lease)).items():
            early = pages - self.detached[name]
            expect(not early, "release gave back pages that nothing detached", observed=sorted(early))
            self.detached[name] -= pages

    def check_lease(self, lease: Lease, prompt: Prompt) -> None:
        """Whole pages, the cache's own, that hold exactly this prefix."""
        count, rest = divmod(lease.length, self.page_size)
        expect(rest == 0, "a lease's length is not whole pages", observed=lease.length, limit=self.page_size)
        for name, ledger in self.ledgers.items():
            pages = page_list(lease.pages[name])
            expect(len(pages) == count, "a lease's pages do not cover its length", observed=len(pages), limit=count)
            lost = [page for page in pages if ledger.owner.get(page) != CACHE]
            expect(not lost, "a leased page is not the cache's (any more)", observed=lost)
            found = [ledger.content[page] for page in pages]
            expect(found == list(prompt.contents[:count]), "a leased page does not hold exactly this prefix")

    def check_peek(self, keys: Sequence[CacheKey]) -> list[int]:
        """What `peek` says; it must be what `match` gives."""
        peeked = self.cache.peek(keys)
        matched = []
        for key in keys:
            lease = self.cache.match(key)
            matched.append(lease.length)
            self.release(lease)
        expect(peeked == matched, "peek and match disagree", observed=peeked, limit=matched)
        return peeked

    def check_counts(self) -> None:
        """The cache's own figures agree with the ledgers."""
        stats = self.cache.stats()
        for name, ledger in self.ledgers.items():
            cached, pinned, held = stats.cached_pages[name], stats.pinned_pages[name], ledger.count(CACHE)
            expect(cached == held, "stats miscount the cached pages", observed=cached, limit=held)
            expect(0 <= pinned <= cached, "stats count more pinned pages than cached ones", observed=pinned)
            unpinned = len(ledger.owned(CACHE) - self.pinned(name) - self.in_flight(name))
            promised = self.cache.evictable(name)
            expect(0 <= promised <= unpinned, "evictable counts pinned pages", observed=promised, limit=unpinned)

    def check_reachable(self, prompts: Sequence[Prompt]) -> None:
        """Every cached page can be reached through some prompt, else it is lost for good."""
        seen: dict[str, set[int]] = {name: set() for name in self.ledgers}
        for prompt in prompts:
            lease = self.match(prompt)
            for name in self.ledgers:
                seen[name].update(lease.pages[name].tolist())
            self.release(lease)
        for name, ledger in self.ledgers.items():
            lost = ledger.owned(CACHE) - self.detached[name] - self.in_flight(name) - seen[name]
            expect(not lost, "cached pages that no prompt reaches", observed=sorted(lost))

    def check_all_free(self) -> None:
        """When all have ended, every page can be had back."""
        for one in list(self.running):
            self.end(one, keep=False)
        self.press()
        for ledger in self.ledgers.values():
            free = ledger.count(FREE)
            expect(free == ledger.total, "pages stay in the cache that nobody pins", observed=free, limit=ledger.total)

    # --- bookkeeping ---

    def pinned(self, name: str) -> set[int]:
        """Pages that running sequences hold through their leases."""
        return {page for one in self.running for page in one.lease.pages[name].tolist()}

    def in_flight(self, name: str) -> set[int]:
        """Pages that wait for the outcome of a transfer."""
        return {page for one in self.flying if one.component == name for page in one.here.tolist()}

    def take_back(self, evicted: Evicted) -> Mapping[str, set[int]]:
        """Pages the cache gave back are free now. Per component, each once, none of them pinned."""
        given: dict[str, set[int]] = {name: set() for name in self.ledgers}
        for name, array in evicted.pages.items():
            pages = page_list(array)
            given[name] = set(pages)
            expect(len(given[name]) == len(pages), "a page was given back twice at once", observed=pages)
            held = given[name] & self.pinned(name)
            expect(not held, "a pinned page was given back", observed=sorted(held))
            self.ledgers[name].drop(pages, CACHE)
        return given

    def _settle(self, one: Running, remaps: Sequence[Remap], owned: Mapping[str, set[int]]) -> None:
        """Who owns which page after an insert: those in the lease and not remapped went to the cache."""
        kept = {(remap.component, remap.index): remap for remap in remaps}
        expect(len(kept) == len(remaps), "insert remapped one page twice")
        for remap in remaps:
            expect(remap.index < one.lease.length // self.page_size, "a remap lies beyond the lease", observed=remap)
        for name, ledger in self.ledgers.items():
            for index, theirs in enumerate(page_list(one.lease.pages[name])):
                mine, told = one.rows[name][index], kept.get((name, index))
                if told is not None:
                    expect((told.mine, told.theirs) == (mine, theirs), "a remap names other pages", observed=told)
                    expect(
                        theirs in owned[name] and mine != theirs, "a remap to a page the cache had not", observed=told
                    )
                    expect(ledger.owner[mine] == CALLER, "a remap hands back a page of the cache", observed=told)
                    continue
                expect(theirs == mine, "the cache serves another page and does not say so", observed=theirs, limit=mine)
                if mine not in owned[name]:
                    ledger.to_cache(mine)


def page_list(pages: Ints) -> list[int]:
    """Page ids as a list. They must be int32 [n]."""
    array = np.asarray(pages)
    sound = array is pages and array.dtype == np.int32 and array.ndim == 1
    expect(sound, "pages are not an int32 array of one dimension", observed=f"{type(pages).__name__} {array.dtype}")
    listed: list[int] = pages.tolist()
    return listed
