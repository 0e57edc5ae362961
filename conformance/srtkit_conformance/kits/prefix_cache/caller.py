"""Plays the scheduler over any prefix cache: every answer is held against the ledgers. Does not look inside.

Policies are free: it asks only what the contract promises, and nothing of it depends on what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, Remap, Transfer
from srtkit.spec.step_plan import Ints
from srtkit_conformance.check import expect
from srtkit_conformance.kits.prefix_cache.ledger import CACHE, CALLER, FREE, Ledger
from srtkit_conformance.kits.prefix_cache.prompts import Prompt
from srtkit_conformance.kits.prefix_cache.running import Running, settle_pages, settle_snapshot


class Caller:
    """One cache, the pages it may be given, the sequences that run. Raises `Failed` for any broken promise."""

    def __init__(self, cache: PrefixCache, page_size: int, components: Sequence[Component], total: int = 40) -> None:
        self.cache = cache
        self.page_size = page_size
        self.components = {one.name: one for one in components}
        self.ledgers = {name: Ledger(total) for name in self.components}
        self.running: list[Running] = []
        self.flying: list[Transfer] = []
        self.detached: dict[str, set[int]] = {name: set() for name in self.components}
        """Pages that a reset left to leases from before it."""
        self.paged = [one.name for one in components if one.kind == "paged"]
        self.slots = [one.name for one in components if one.kind == "slot"]

    # --- what a scheduler does ---

    def start(self, prompt: Prompt, usable: int | None = None) -> Running | None:
        """Admit a sequence: match, then own pages for the rest. None if they cannot be had."""
        lease = self.match(prompt, len(prompt) if usable is None else usable)
        one = Running(prompt, lease)
        missing = -(-len(prompt) // self.page_size) - lease.length // self.page_size
        room = [make_room(self, name, missing) for name in self.paged]
        if not all(room):
            self.release(lease)
            return None
        for name in self.paged:
            ledger = self.ledgers[name]
            own = ledger.take(missing)
            one.rows[name] = lease.pages[name].tolist() + own
            for page, content in zip(own, prompt.contents[len(one.rows[name]) - missing :], strict=False):
                ledger.write(page, content)
        self.running.append(one)
        return one

    def commit(self, one: Running, upto: int, use_theirs: bool = False, snapshot: bool = True) -> list[Remap]:
        """Offer what is committed of a sequence; `use_theirs`: go on with the cache's page where it had one.

        `snapshot`: with the state after `upto` tokens where those are whole pages and a slot can be had. Then the
        pages before every window are let go.
        """
        old = one.lease
        owned = {name: ledger.owned(CACHE) for name, ledger in self.ledgers.items()}
        offered = {**one.rows, **{name: snapshot_of(self, name, one, upto if snapshot else 0) for name in self.slots}}
        rows = {name: np.array(row, np.int32) for name, row in offered.items()}
        one.lease, remaps = self.cache.insert(old, replace(one.prompt.key, limit=upto), rows, upto)
        one.matched = False
        got = one.lease.length
        expect(old.length <= got, "insert returned a shorter lease", observed=got, limit=old.length)
        expect(got <= upto, "insert took tokens that are not committed", observed=got, limit=upto)
        expect(got == old.length or not one.stale, "insert took pages under a lease from before a reset")
        kept = {(remap.component, remap.index): remap for remap in remaps}
        expect(len(kept) == len(remaps), "insert remapped one page twice")
        for name, ledger in self.ledgers.items():
            told = [remap for remap in remaps if remap.component == name]
            if name in self.slots:
                settle_snapshot(ledger, offered[name], told, owned[name], reached=got >= upto)
            else:
                by_index = {remap.index: remap for remap in told}
                settle_pages(ledger, page_list(one.lease.pages[name]), one.rows[name], by_index, owned[name])
        for remap in remaps if use_theirs else ():
            if remap.component in one.rows:
                one.rows[remap.component][remap.index] = remap.theirs
                self.ledgers[remap.component].drop([remap.mine], CALLER)
        self.let_go(one, upto)
        self.check_lease(one.lease, one.prompt, matched=False)
        return remaps

    def let_go(self, one: Running, length: int) -> None:
        """Of a window only the pages stay that going on from `length`, in whole pages, needs.

        Own ones are free then, the cache's forgotten.
        """
        whole = length - length % self.page_size
        for name in self.paged:
            row, first = one.rows[name], self.components[name].first_page(whole, self.page_size)
            mine = [page for page in row[:first] if page and self.ledgers[name].owner[page] == CALLER]
            self.ledgers[name].drop(mine, CALLER)
            row[:first] = [0] * first

    def end(self, one: Running, keep: bool = True) -> None:
        """A sequence ends; `keep`: all of it is offered first. Its own pages are free then."""
        self.running.remove(one)
        if keep:
            self.commit(one, len(one.prompt))
        for name in self.paged:
            ledger = self.ledgers[name]
            ledger.drop([page for page in one.rows[name] if page and ledger.owner[page] == CALLER], CALLER)
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
        """Free whatever can be freed, also when copies under way hold it back."""
        moving = True
        while moving:
            self.flying += self.cache.transfers()
            moving = bool(self.flying)
            self.acknowledge()
            for name in self.ledgers:
                while (n := self.cache.evictable(name)) > 0:
                    self.evict(name, n)
            moving |= bool(self.flying)
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
            self.detached[name] = ledger.owned(CACHE)
            kept = self.detached[name] - pinned[name] - self.in_flight(name)
            expect(not kept, "reset kept pages that nobody pins", observed=sorted(kept))

    # --- calls with their checks ---

    def match(self, prompt: Prompt, limit: int | None = None) -> Lease:
        """A pinned prefix that is sound, within the limit, and as long as the cache's pages allow."""
        usable = len(prompt) if limit is None else limit
        longest = longest_of(self, prompt, usable)
        lease = self.cache.match(replace(prompt.key, limit=usable))
        expect(lease.length <= max(usable, 0), "match passes the key's limit", observed=lease.length, limit=usable)
        self.check_lease(lease, prompt)
        if not any(one.lookahead for one in self.components.values()):
            expect(lease.length >= longest, "a longer prefix is cached", observed=lease.length, limit=longest)
        asked = lease.snapshot_at
        sound = all(at % self.page_size == 0 and lease.length < at <= usable for at in asked)
        expect(sound and list(asked) == sorted(set(asked)), "snapshots are wanted where none can be", observed=asked)
        return lease

    def release(self, lease: Lease) -> None:
        """End a lease; only pages that a reset had detached may come back."""
        detached = {name: set(pages) for name, pages in self.detached.items()}
        for name, pages in self.take_back(self.cache.release(lease)).items():
            early = pages - detached[name]
            expect(not early, "release gave back pages that nothing detached", observed=sorted(early))

    def check_lease(self, lease: Lease, prompt: Prompt, *, matched: bool = True) -> None:
        """Whole pages, the cache's own, that hold exactly this prefix. One of an insert may go without a snapshot."""
        count, rest = divmod(lease.length, self.page_size)
        expect(rest == 0, "a lease's length is not whole pages", observed=lease.length, limit=self.page_size)
        for name, ledger in self.ledgers.items():
            pages = page_list(lease.pages[name])
            contents = prompt.contents[:count]
            if name in self.slots:
                contents = contents[-1:]
                expect(len(pages) == len(contents) or not (pages or matched), "a lease has not the one snapshot")
            else:
                expect(len(pages) == count, "a lease's pages do not cover its length", observed=len(pages), limit=count)
            first = self.components[name].first_page(lease.length, self.page_size)
            expect(not any(pages[:first]), "a lease names pages before its window", observed=pages[:first])
            named = [(page, content) for page, content in zip(pages, contents, strict=False) if page]
            missing = len(pages) - first - len(named)
            expect(missing <= 0, "a lease has no page where one is needed", observed=pages, limit=first)
            lost = [page for page, _ in named if ledger.owner.get(page) != CACHE]
            expect(not lost, "a leased page is not the cache's (any more)", observed=lost)
            found = [ledger.content[page] == content for page, content in named]
            expect(all(found), "a leased page does not hold exactly this prefix")

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
        """Every cached page can be reached through some prompt, else it is lost for good.

        Unless a component stands beside: then each match is as long as what is cached allows, and no more is asked.
        """
        seen: dict[str, set[int]] = {name: set() for name in self.ledgers}
        for prompt in prompts:
            lease = self.match(prompt)
            for name in self.ledgers:
                seen[name].update(lease.pages[name].tolist())
            self.release(lease)
        for name, ledger in self.ledgers.items() if all(one.reach == "all" for one in self.components.values()) else ():
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
        return {page for one in self.running for page in one.lease.pages[name].tolist() if page}

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
            self.detached[name] -= given[name]
        return given


def page_list(pages: Ints) -> list[int]:
    """Page ids as a list. They must be int32 [n]."""
    array = np.asarray(pages)
    sound = array is pages and array.dtype == np.int32 and array.ndim == 1
    expect(sound, "pages are not an int32 array of one dimension", observed=f"{type(pages).__name__} {array.dtype}")
    listed: list[int] = pages.tolist()
    return listed


def make_room(caller: Caller, name: str, n: int) -> bool:
    """Whether `n` entries of the component are free, evicting what is needed."""
    ledger = caller.ledgers[name]
    for _ in range(2):  # a copy under way may hold back what is needed
        if ledger.count(FREE) < n:
            caller.evict(name, n - ledger.count(FREE))
            caller.acknowledge()
    return ledger.count(FREE) >= n


def snapshot_of(caller: Caller, name: str, one: Running, upto: int) -> list[int]:
    """A slot of the caller's with the state after `upto` tokens, if there is such a state and a slot."""
    if upto <= one.lease.length or upto % caller.page_size or not make_room(caller, name, 1):
        return []
    [slot] = caller.ledgers[name].take(1)
    caller.ledgers[name].write(slot, one.prompt.contents[upto // caller.page_size - 1])
    return [slot]


def longest_of(caller: Caller, prompt: Prompt, usable: int) -> int:
    """The longest prefix that all components could serve, by the ledgers."""
    held = {}
    for name, ledger in caller.ledgers.items():
        pages = ledger.owned(CACHE) - caller.detached[name] - caller.in_flight(name)
        held[name] = {ledger.content[page] for page in pages}
    for count in range(max(0, min(usable, len(prompt))) // caller.page_size, 0, -1):
        length = count * caller.page_size
        first = {name: one.first_page(length, caller.page_size) for name, one in caller.components.items()}
        first |= dict.fromkeys(caller.slots, count - 1)  # the snapshot at the end
        if all(held[name].issuperset(prompt.contents[start:count]) for name, start in first.items()):
            return length
    return 0
