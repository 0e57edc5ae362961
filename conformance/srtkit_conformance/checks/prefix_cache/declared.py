"""What a cache declares: each yes works, each no is refused by its build, events and tiers are what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from srtkit.spec.capabilities import No
from srtkit.spec.errors import Unsupported
from srtkit.spec.kv import FULL, Component
from srtkit.spec.prefix_cache import CacheEvent, PrefixCacheBuild, PrefixCacheDescriptor
from srtkit_conformance.check import Figures, Informational, Outcome, Refused, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.needs import needs_of
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import declared, new_cache, new_caller, page_of
from srtkit_conformance.target import Target


@check(
    "prefix_cache.no_torch",
    level=0,
    clause="prefix_cache/1.0: a cache knows no tensor and no torch",
    explain="The scheduler's process does not import torch: it costs seconds at start and hundreds of megabytes.",
)
def no_torch(target: Target) -> Outcome:
    arguments = (target.descriptor, PrefixCacheBuild(page_of(target), (FULL,), target.options))
    if not can_travel(*arguments):
        return Informational("its functions cannot be imported by name, so a new process cannot build it")
    found = imported_by(use_once, *arguments)
    expect(not found, "building or using the cache imports torch")
    return None


@check(
    "prefix_cache.host_bytes",
    level=0,
    clause="prefix_cache/1.1: host_bytes(options): memory that it takes on the host of each rank, for the memory plan",
    explain="The plan prints it, and takes it off what pages may have where the device's memory is the host's.",
)
def host_bytes(target: Target) -> Figures:
    said = target.descriptor.host_bytes(target.options)
    expect(type(said) is int and said >= 0, "host_bytes is no number of bytes", observed=said)
    return {"bytes": said}


def use_once(descriptor: PrefixCacheDescriptor, build: PrefixCacheBuild) -> None:
    """One of every call, in a new process."""
    key = letters(build.page_size, "ABC")
    descriptor.capabilities(build.options)
    cache = descriptor.build(replace(build, needs=needs_of(descriptor, build.options, {"prefix_cache": build})))
    lease, _ = cache.insert(cache.match(key), key, {"full": np.array([1, 2, 3], np.int32)}, len(key.ids))
    cache.release(lease)
    cache.peek([key])
    cache.evict("full", 1)
    cache.complete([one.id for one in cache.transfers()], [])
    cache.reset()
    cache.events()
    cache.stats()
    cache.outline(10, 4)
    cache.close()


@check(
    "prefix_cache.page_sizes",
    level=1,
    clause="prefix_cache/1.0: page_sizes are those it takes; a declared no is refused with Unsupported",
    explain="A declared page size fails or is rounded, or one that is not declared is taken without a word.",
)
def page_sizes(target: Target) -> Figures:
    sizes = declared(target).page_sizes
    for size in sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}):
        caller = new_caller(target, page_size=size)
        prompts = numbered(size, [letters(size, text) for text in ("ABC", "ABX")])
        caller.store(*prompts)
        caller.check_reachable(prompts)
        caller.check_all_free()
    refused = [size for size in (0, -1, sizes[-1] + 1, 2 * sizes[-1]) if size not in sizes]
    for size in refused:
        expect(refusal(target, size, FULL) is not None, f"builds with the undeclared page size {size}")
    return {"smallest": sizes[0], "largest": sizes[-1]}


@check(
    "prefix_cache.reaches",
    level=1,
    clause="prefix_cache/1.0: reaches are those of components it understands; a declared no is refused",
    explain="A component that the cache does not model is taken as if every earlier token were needed, or a declared "
    "one is refused.",
)
def reaches(target: Target) -> Figures:
    can = declared(target)
    kinds = {"all": FULL, "window": Component("local", reach="window", window=2 * page_of(target))}
    kinds["snapshot"] = Component("state", kind="slot", reach="snapshot")
    answers: dict[str, float | int | str] = {}
    for reach, component in kinds.items():
        reason = refusal(target, page_of(target), component)
        if reach not in can.reaches:
            expect(reason is not None, f"builds with a component of the undeclared reach {reach}")
            answers[reach] = "refused"
            continue
        expect(reason is None, f"refuses a component of the declared reach {reach}", observed=reason)
        answers[reach] = "works"
        _store_one(target, component)
    return answers


def refusal(target: Target, page_size: int, component: Component) -> str | None:
    """Why the cache cannot be built so; None when it can."""
    try:
        new_cache(target, page_size, [component]).close()
    except Unsupported as error:
        return error.cause
    return None


def _store_one(target: Target, component: Component) -> None:
    page = page_of(target)
    prompts = numbered(page, [letters(page, "ABC")])
    caller = Caller(new_cache(target, page, [component]), page, [component])
    caller.store(*prompts, *prompts)
    caller.check_counts()
    caller.check_all_free()


@check(
    "prefix_cache.lookahead",
    level=1,
    clause="prefix_cache/1.0: a component with lookahead n is valid n tokens less far",
    explain="The pages of a draft component depend on the tokens after them: the last page of a shared prefix is wrong "
    "for it as soon as the next tokens differ. Refuse such components or shorten the lease.",
)
def lookahead(target: Target) -> Outcome:
    component, page = Component("draft", lookahead=1), page_of(target)
    reason = refusal(target, page, component)
    if reason is not None:
        return Refused(reason)
    prompts = numbered(page, [letters(page, text) for text in ("ABC", "ABX", "ABCD", "ABCQ")], lookahead=1)
    caller = Caller(new_cache(target, page, [component]), page, [component])
    caller.store(*prompts)
    for prompt in prompts:
        caller.release(caller.match(prompt))
    caller.check_all_free()
    return None


@check(
    "prefix_cache.events",
    level=1,
    clause="prefix_cache/1.0: events say what changed since the last call, by chained content hashes of whole pages",
    explain="A router that follows the events must know exactly what is cached: a removal is not told, a hash does "
    "not cover the prefix or the namespace, a page is told twice.",
)
def events(target: Target) -> Figures:
    page = page_of(target)
    random = target.rng("events")
    texts = ["".join(random.choice(list("ABC"), int(random.integers(1, 6)))) for _ in range(60)]
    spaces = (b"", b"adapter")
    prompts = numbered(page, [letters(page, text, spaces[len(text) % 2]) for text in texts])
    caller = new_caller(target, total=24)
    known: set[int] = set()
    heard = 0
    for number, prompt in enumerate(prompts):
        caller.store(prompt)
        if number == 40:
            caller.reset()
            caller.acknowledge()
        told = caller.cache.events()
        heard += len(told)
        for event in told:
            _follow(event, known)
        if not declared(target).events:
            expect(not told, "gives events although it declares none")
            continue
        cached = caller.cache.stats().cached_pages["full"]
        expect(len(known) == cached, "a listener knows of another number of pages", observed=len(known), limit=cached)
    expect(caller.cache.events() == [], "events are told twice")
    return {"events": heard}


def _follow(event: CacheEvent, known: set[int]) -> None:
    if event.kind == "cleared":
        known.clear()
        return
    hashes = set(event.hashes)
    expect(len(hashes) == len(event.hashes), "one event names a page twice", observed=event)
    expect(event.parent == 0 or event.parent in known, "an event's parent was never stored", observed=event)
    if event.kind == "stored":
        expect(not hashes & known, "a stored page has the hash of another, or was told before", observed=event)
        known |= hashes
    else:
        expect(hashes <= known, "a removed page was never stored", observed=event)
        known -= hashes


@check(
    "prefix_cache.tiers",
    level=1,
    clause="prefix_cache/1.0: source pages stay pinned until the ack; complete returns pages that became free",
    explain="A page that is being copied out was given back before the copy was done, twice, or not at all; or the "
    "copy failed and nobody gave its page back.",
)
def tiers(target: Target) -> Outcome:
    page = page_of(target)
    prompts = numbered(page, [letters(page, text) for text in ("ABCD", "ABXY", "QRST", "QRUV")])
    caller = new_caller(target)
    moved = 0
    for number, prompt in enumerate(prompts * 3):
        caller.store(prompt)
        caller.evict("full", 2)
        moved += len(caller.flying)
        caller.check_counts()
        if number % 2:
            caller.acknowledge(failed=number % 4 == 1)
            caller.check_reachable(prompts)
    caller.acknowledge()
    caller.check_all_free()
    expect(caller.cache.transfers() == [], "a transfer is returned twice")
    can = declared(target).tiers
    if isinstance(can, No):
        expect(moved == 0, "asks for transfers although it declares no tiers", observed=moved)
        expect(not caller.cache.use_storage(True), "says that there is storage although it declares no tiers")
    return {"transfers": moved}


@check(
    "prefix_cache.close",
    level=1,
    clause="prefix_cache/1.0: close releases files and connections; it is idempotent",
    explain="The second close raises: shutdown closes what start-up closed after an error.",
)
def close(target: Target) -> None:
    cache = new_caller(target).cache
    cache.close()
    cache.close()


@check(
    "prefix_cache.hit_rate",
    level=1,
    clause="informational: policies are free",
    explain="Tokens found over tokens asked for, on conversations that share a system prompt and do not all fit.",
)
def hit_rate(target: Target) -> Informational:
    page = page_of(target)
    random = target.rng("hit_rate")
    caller = new_caller(target, total=48)
    turns = [f"SYS{letter}" for letter in "ABCDEFGH"]
    asked = found = 0
    keys = []
    for _ in range(80):
        which = int(random.integers(len(turns)))
        turns[which] = (turns[which] + chr(ord("A") + int(random.integers(26))))[:10]
        keys.append(replace(letters(page, turns[which]), priority=which % 2))
    for prompt in numbered(page, keys):
        lease = caller.match(prompt)
        asked, found = asked + len(prompt), found + lease.length
        caller.release(lease)
        caller.store(prompt)
    shares = bool(declared(target).shares)
    return Informational("hit rate on a scripted trace", {"hit_rate": round(found / asked, 3), "shares": str(shares)})
