"""What identifies a prefix: a lease never holds a page of anything but exactly this prefix."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from srtkit.spec.prefix_cache import CacheKey
from srtkit.spec.step_plan import Ints
from srtkit_conformance.check import Figures, check, expect
from srtkit_conformance.kits.prefix_cache.caller import Caller
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, Spans, letters, numbered
from srtkit_conformance.kits.prefix_cache.setup import BOTH, new_caller, page_of
from srtkit_conformance.target import Target


def store_and_find(caller: Caller, prompts: Sequence[Prompt], random: np.random.Generator) -> Figures:
    """Store all in random order; after each, whatever is found for any of them must be its own."""
    found = 0
    for which in random.permutation(len(prompts)):
        caller.store(prompts[which])
        for prompt in prompts:
            lease = caller.match(prompt)
            found += lease.length // caller.page_size
            caller.release(lease)
    return {"prompts": len(prompts), "pages_found": found}


@check(
    "prefix_cache.sound",
    level=1,
    clause="prefix_cache/1.0: a page id in the cache stands for its whole prefix; keys agree only where their ids do",
    explain="A comparison that looks at a page alone, at part of it, or at its hash only; a child found under the "
    "wrong parent; a node that is split at the wrong place.",
)
def sound(target: Target) -> Figures:
    page = page_of(target)
    keys = [letters(page, text) for text in ("ABC", "ABD", "AXC", "XBC", "CBA", "AAAA", "AAB", "BBC", "ABCDE", "B")]
    for at in range(2 * page):
        changed = letters(page, "ABC").ids.copy()
        changed[at] += 1
        keys.append(CacheKey(changed))
    return store_and_find(new_caller(target, total=200), numbered(page, keys), target.rng("sound"))


@check(
    "prefix_cache.namespaces",
    level=1,
    clause="prefix_cache/1.0: two keys agree on a range only if ids, namespace and spans agree there",
    explain="The namespace (adapter and its version, salt, weight version) is missing from the key, cut short, or "
    "read as text that ends at a zero byte.",
)
def namespaces(target: Target) -> Figures:
    names = (b"", b"adapter", b"adapter\0", b"\0", b"\0adapter", b"adapter" * 40, b"adapter" * 40 + b"1")
    page = page_of(target)
    keys = [letters(page, "ABC", namespace) for namespace in names]
    return store_and_find(new_caller(target, total=200), numbered(page, keys), target.rng("namespaces"))


@check(
    "prefix_cache.spans",
    level=1,
    clause="prefix_cache/1.0: spans (start, stop, digest) replace the identity of those positions",
    explain="Place-holder ids are compared where an image stands; a span's digest is used without its length or its "
    "place; a span that crosses a page's end is forgotten in the second page.",
)
def spans(target: Target) -> Figures:
    page = page_of(target)
    half = page // 2
    cat, dog = b"cat", b"dog"
    places: list[Spans] = [
        (),
        ((page, 2 * page, cat),),
        ((page, 2 * page, dog),),
        ((page, 2 * page - 1, cat),),
        ((page, 2 * page + 1, cat),),
        ((page + 1, 2 * page + 1, cat),),
        ((page - 1, 2 * page - 1, cat),),
        ((page, page + half, cat), (page + half, 2 * page, cat)),
        ((page, 2 * page, cat), (3 * page, 4 * page, dog)),
        ((half, page + half + 1, cat), (3 * page, 4 * page, dog)),
        ((half, page + half + 1, dog), (3 * page, 4 * page, dog)),
        ((2, 4 * page - 1, cat),),
        ((2, 4 * page - 1, dog),),
    ]
    # Below page size 2 some of these spans would be empty.
    keys = [letters(page, "ABCD", spans=one) for one in places if all(0 <= start < stop for start, stop, _ in one)]
    other_ids = replace(keys[1], ids=letters(page, "AXCD").ids)
    return store_and_find(new_caller(target, total=200), numbered(page, [*keys, other_ids]), target.rng("spans"))


@check(
    "prefix_cache.priority",
    level=1,
    clause="prefix_cache/1.0: priority is a hint that identifies nothing",
    explain="The priority is part of the key, so requests of different priority do not share.",
)
def priority(target: Target) -> Figures:
    page = page_of(target)
    low, *higher = numbered(page, [letters(page, "ABC", priority=one) for one in (0, 7, -7)])
    caller = new_caller(target)
    caller.store(low)
    lengths = []
    for prompt in (low, *higher):
        lease = caller.match(prompt)
        lengths.append(lease.length)
        caller.release(lease)
    expect(len(set(lengths)) == 1, "the length found depends on the priority", observed=lengths)
    caller.check_all_free()
    return {"tokens_found": lengths[0]}


@check(
    "prefix_cache.collisions",
    level=1,
    clause="prefix_cache/1.0: two keys agree on a range only if ids, namespace and spans agree there",
    explain="Pages are compared by a hash that different tokens can share (a sum, CRC-32, Adler-32, a polynomial, ids "
    "cut to 16 bits). Compare the tokens, or use a cryptographic hash.",
)
def collisions(target: Target) -> Figures:
    page = max(4, page_of(target))
    random = target.rng("collisions")
    base = random.integers(70_000, 90_000, page).astype(np.int32)
    tail = letters(page, "B").ids
    pages = [base, *(np.array(one, np.int32) for one in colliding(base.astype(np.int64)))]
    keys = [CacheKey(np.concatenate([one, tail])) for one in pages]
    return store_and_find(new_caller(target, page_size=page, total=100), numbered(page, keys), random)


def colliding(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Other ids that weak hashes cannot tell from these."""
    found = [ids[::-1], np.roll(ids, 1), ids + 65_536, _crc_twin(ids)]
    changes: list[tuple[int, ...]] = [(1, -1), (1, -2, 1), *((1, -base) for base in (31, 33, 131, 257, 1009, 65_599))]
    for change in changes:
        one = ids.copy()
        one[: len(change)] += change
        found.append(one)
    return found


def _crc_twin(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Ids of the same CRC-32 as int32 bytes. CRC-32 is linear over bits: solve for a change that it does not see."""
    zeros = bytes(4 * len(ids))
    seen: dict[int, tuple[int, int]] = {}  # highest bit of a CRC → that CRC and the bits of the change that cause it
    for bit in range(40):  # the low 20 bits of the first two ids
        change = 1 << (bit % 20 + 32 * (bit // 20))
        crc = zlib.crc32(change.to_bytes(4 * len(ids), "little")) ^ zlib.crc32(zeros)
        while crc and crc.bit_length() in seen:
            other_crc, other_change = seen[crc.bit_length()]
            crc, change = crc ^ other_crc, change ^ other_change
        if crc == 0:
            twin = ids ^ np.frombuffer(change.to_bytes(4 * len(ids), "little"), np.int32)
            assert zlib.crc32(twin.astype(np.int32).tobytes()) == zlib.crc32(ids.astype(np.int32).tobytes())
            return twin
        seen[crc.bit_length()] = (crc, change)
    raise AssertionError("40 bits have more values than a CRC-32")


@check(
    "prefix_cache.reuse",
    level=1,
    clause="prefix_cache/1.0: pages given back on eviction are the scheduler's again",
    explain="Something remembers a page after its eviction: a memo of earlier matches, a dictionary entry that was not "
    "removed, a node that still names its pages.",
)
def reuse(target: Target) -> Figures:
    page = page_of(target)
    random = target.rng("reuse")
    prompts = numbered(page, [letters(page, text) for text in ("ABCD", "ABXY", "QRST", "QRUV", "MNOP", "MNAB")])
    caller = new_caller(target, total=9)
    for _ in range(40):
        caller.store(prompts[random.integers(len(prompts))])
        caller.check_reachable(prompts)
        caller.evict("full", int(random.integers(3)))
        caller.acknowledge()
        for prompt in prompts:
            caller.release(caller.match(prompt))
    caller.check_all_free()
    return {"sequences": 40}


@check(
    "prefix_cache.views",
    level=1,
    clause="prefix_cache/1.0: the arrays of a key and of insert are views, valid during the call",
    explain="The cache kept the scheduler's arrays instead of copying them; the scheduler writes on in its columns.",
)
def views(target: Target) -> None:
    page = page_of(target)
    caller = new_caller(target)
    cache = caller.cache
    key = letters(page, "ABC")
    rows: dict[str, Ints] = {"full": np.array([3, 1, 2], np.int32)}
    again, zeros = CacheKey(key.ids.copy()), CacheKey(np.zeros_like(key.ids))
    lease, _ = cache.insert(cache.match(key), key, rows, len(key.ids))
    before = lease.pages["full"].tolist()
    key.ids[:] = 0
    rows["full"][:] = 9
    expect(lease.pages["full"].tolist() == before, "a lease's pages change with the caller's array")
    expect(cache.match(zeros).length == 0, "a stored prefix changes with the caller's ids")
    found = cache.match(again).pages["full"].tolist()
    expect(found == before[: len(found)], "the stored pages change with the caller's array", observed=found)


@check(
    "prefix_cache.independent",
    level=1,
    clause="prefix_cache/1.0: one cache per scheduler",
    explain="State at module level: a process that runs several schedulers would mix their page ids.",
)
def independent(target: Target) -> None:
    page = page_of(target)
    one, other = new_caller(target), new_caller(target)
    prompts = numbered(page, [letters(page, "ABC"), letters(page, "XYZ")])
    one.store(*prompts)
    expect(other.cache.peek([prompts[0].key]) == [0], "a new cache finds what another one stored")
    other.store(*reversed(prompts))
    for caller in (one, other):
        caller.check_counts()
        caller.check_all_free()


@check(
    "prefix_cache.components",
    level=1,
    clause="prefix_cache/1.0: match gives the longest prefix usable by all components at once; pages per component",
    explain="Pages of one component are given back, remapped or counted for another, or lost when it loses its own.",
)
def components(target: Target) -> Figures:
    page = page_of(target)
    texts = ("ABCD", "ABCX", "ABQ", "ABCD")
    prompts = numbered(page, [letters(page, text) for text in texts])
    caller = new_caller(target, BOTH)
    ledger = caller.ledgers["indexer"]
    shifted = ledger.take(7)  # so that equal page ids never hide a mistake
    started = [caller.start(prompt) for prompt in prompts]
    steps: list[Callable[[], object]] = [caller.check_counts, lambda: caller.check_reachable(prompts)]
    for one in started:
        assert one is not None
        caller.commit(one, len(one.prompt))
    kept = caller.cache.stats().cached_pages["full"]
    for one in list(caller.running):
        caller.end(one)
    for component in (*BOTH, *BOTH):
        caller.evict(component.name, 1)
        caller.acknowledge()
        for step in steps:
            step()
    ledger.drop(shifted, "caller")
    caller.check_all_free()
    return {"pages_kept": kept}
