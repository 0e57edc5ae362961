"""Snapshots case by case: where a match ends, where the next one is wanted, and what goes with what."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

import srtkit_plugin_cache_mamba as plugin
from srtkit.spec.kv import FULL, STATE
from srtkit.spec.prefix_cache import CacheKey, Lease, PrefixCache, PrefixCacheBuild, Remap

PAGE = 4


def new_cache(every: int = 0) -> PrefixCache:
    """Full pages and states."""
    return plugin.build(PrefixCacheBuild(PAGE, (FULL, STATE), plugin.MambaOptions(every=every)))


def key(letters: str) -> CacheKey:
    """Every letter is one page of equal tokens."""
    return CacheKey(np.repeat(np.array([ord(letter) for letter in letters], np.int32), PAGE))


def extend(cache: PrefixCache, lease: Lease, letters: str, *state: int) -> tuple[Lease, list[Remap]]:
    """Insert all of a key, with a snapshot in slot `state` or without."""
    pages = {"full": np.arange(100, 100 + len(letters), dtype=np.int32), "state": np.array(state, np.int32)}
    return cache.insert(lease, key(letters), pages, PAGE * len(letters))


def stored() -> PrefixCache:
    """ABCDEF with snapshots after B and F."""
    cache = new_cache()
    lease, _ = extend(cache, cache.match(key("ABCDEF")), "AB", 7)
    lease, _ = extend(cache, lease, "ABCDE")
    lease, _ = extend(cache, lease, "ABCDEF", 8)
    cache.release(lease)
    return cache


def test_a_match_ends_where_a_snapshot_stands() -> None:
    cache = stored()
    texts = ("ABCDEF", "ABCDEFG", "ABCDE", "ABX", "AB", "A")
    assert [length // PAGE for length in cache.peek([key(text) for text in texts])] == [6, 6, 2, 2, 2, 0]
    lease = cache.match(key("ABCDE"))
    assert (lease.pages["full"].tolist(), lease.pages["state"].tolist()) == ([100, 101], [7])
    assert cache.evictable("state") == 1
    assert cache.evict("state", 2).pages["state"].tolist() == [8]
    cache.release(lease)
    assert cache.peek([key("ABCDEF")]) == [2 * PAGE]


def test_snapshots_are_wanted_at_the_branch_and_at_the_end() -> None:
    cache = stored()
    lease = cache.match(key("ABCDXYZ"))
    assert (lease.length, lease.snapshot_at) == (2 * PAGE, (4 * PAGE, 7 * PAGE))
    assert cache.match(key("ABCDEF")).snapshot_at == ()
    assert cache.match(CacheKey(key("QR").ids, limit=2 * PAGE - 1)).snapshot_at == (PAGE,)


def test_later_ones_are_wanted_at_intervals() -> None:
    cache = new_cache(every=10)  # three pages, rounded up
    lease, _ = extend(cache, cache.match(key("A")), "A")
    assert lease.snapshot_at == (3 * PAGE,)
    lease, _ = extend(cache, lease, "ABC", 3)
    assert lease.snapshot_at == (6 * PAGE,)
    cache = new_cache(every=0)
    assert extend(cache, cache.match(key("A")), "A")[0].snapshot_at == ()


def test_one_snapshot_a_prefix() -> None:
    cache = stored()
    lease, remaps = extend(cache, cache.match(key("A")), "AB", 9)
    assert remaps == [Remap("state", 0, 9, 7)]
    assert lease.pages["state"].tolist() == []
    assert cache.stats().cached_pages == {"full": 6, "state": 2}


def test_the_end_of_a_prefix_takes_its_snapshot() -> None:
    cache = stored()
    given = {name: pages.tolist() for name, pages in cache.evict("full", 1).pages.items()}
    assert given == {"full": [105], "state": [8]}
    assert cache.peek([key("ABCDEF")]) == [2 * PAGE]


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValidationError):
        plugin.MambaOptions.model_validate({"interval": 3})


def test_the_descriptor_loads_neither_torch_nor_the_tree() -> None:
    code = (
        "import sys, srtkit_plugin_cache_mamba as p; p.srtkit_prefix_cache()\n"
        "assert not {'torch', 'srtkit_plugin_cache_radix'} & set(sys.modules)\n"
        "from srtkit.spec.prefix_cache import PrefixCacheBuild; from srtkit.spec.kv import FULL, STATE\n"
        "p.build(PrefixCacheBuild(16, (FULL, STATE), p.MambaOptions()))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_outline_shows_where_snapshots_stand() -> None:
    shown = [(one.length // PAGE, one.pages["state"].tolist()) for one in stored().outline(10, 0)]
    assert shown == [(2, [7]), (5, []), (6, [8])]
    states = plugin.build(PrefixCacheBuild(PAGE, (STATE,), plugin.MambaOptions()))
    states.release(states.insert(states.match(key("AB")), key("AB"), {"state": np.array([9], np.int32)}, 2 * PAGE)[0])
    [one] = states.outline(10, 0)
    assert (one.length, one.pages["state"].tolist()) == (2 * PAGE, [9])


def test_a_chain_of_any_length_goes_with_its_last_state() -> None:
    """States alone, one for each chunk of a prompt: nodes go in one call when nothing keeps them."""
    cache, chunks = plugin.build(PrefixCacheBuild(PAGE, (STATE,), plugin.MambaOptions())), 2 * sys.getrecursionlimit()
    ids = np.arange(PAGE * chunks, dtype=np.int32)
    lease = cache.match(CacheKey(ids))
    for n in range(1, chunks + 1):
        state = np.array([7] if n == chunks else [], np.int32)
        lease, _ = cache.insert(lease, CacheKey(ids[: PAGE * n]), {"state": state}, PAGE * n)
    cache.release(lease)
    assert cache.peek([CacheKey(ids)]) == [PAGE * chunks]
    assert cache.evict("state", 1).pages["state"].tolist() == [7]
    assert cache.peek([CacheKey(ids)]) == [0]
