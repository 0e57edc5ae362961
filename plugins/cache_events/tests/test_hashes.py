"""A router's hashes are the caches' own."""

from __future__ import annotations

import numpy as np
import pytest

from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCacheBuild
from srtkit_plugin_cache_events.hashes import page_hashes
from srtkit_plugin_cache_radix import RadixOptions, build


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_they_agree_with_those_of_the_cache(page_size: int) -> None:
    random = np.random.default_rng(page_size)
    for _ in range(30):
        ids = random.integers(0, 2**31, int(random.integers(page_size, 8 * page_size)), dtype=np.int32)
        cuts = np.sort(random.choice(len(ids) + 3, 4, replace=False)).tolist() if len(ids) > 1 else [0, 1, 1, 1]
        spans = tuple((a, b, random.bytes(8)) for a, b in zip(cuts[::2], cuts[1::2], strict=True) if a < b)
        namespace = random.bytes(int(random.integers(5)))
        key = CacheKey(ids, namespace, spans)
        options = RadixOptions(events=True)
        cache = build(PrefixCacheBuild(page_size, (FULL,), options))
        lease = cache.match(key)
        told: list[int] = []
        for upto in (len(ids) // 2, len(ids)):  # in two pieces
            pages = np.arange(1, len(ids) // page_size + 2, dtype=np.int32)
            lease, _ = cache.insert(lease, key, {"full": pages}, upto)
            told += [one for event in cache.events() for one in event.hashes]
        assert page_hashes(ids, page_size, namespace, spans) == told
        assert len(told) == len(ids) // page_size


def test_a_known_one_for_readers_in_other_languages() -> None:
    assert page_hashes([1, 2, 3, 4, 5, 6, 7, 8, 9], 4) == [8924412748442031542, 14831420854439832330]
    assert page_hashes([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, b"salt") == [3605913797507373005, 5446608442910829907]
