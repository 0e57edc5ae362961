"""Spans replace token identities: two images are one only if digest, length and place agree."""

from __future__ import annotations

import numpy as np
import pytest

from plugins.cache_radix.tests.helpers import Spans, extend, found, key, new_cache, store
from srtkit.spec.prefix_cache import CacheKey
from srtkit_plugin_cache_radix.keys import segment_of

CAT, DOG = b"cat", b"dog"


@pytest.mark.parametrize(
    ("spans", "pages"),
    [
        (((4, 8, CAT),), 4),
        (((4, 8, DOG),), 1),  # another image
        ((), 1),  # plain tokens
        (((4, 7, CAT),), 1),  # a shorter one
        (((4, 9, CAT),), 1),  # a longer one
        (((5, 9, CAT),), 1),  # elsewhere in the page
        (((3, 7, CAT),), 0),  # begins a page earlier
        (((4, 8, CAT), (12, 16, DOG)), 3),  # another one later
        (((4, 6, CAT), (6, 8, CAT)), 1),  # two halves
    ],
)
def test_agree_as_far_as_spans_do(spans: Spans, pages: int) -> None:
    cache = new_cache()
    store(cache, key("ABCD", spans=((4, 8, CAT),)), [1, 2, 3, 4])
    assert found(cache, key("ABCD", spans=spans)) == [1, 2, 3, 4][:pages]


def test_the_ids_under_a_span_do_not_count() -> None:
    cache = new_cache()
    store(cache, key("AXC", spans=((4, 8, CAT),)), [1, 2, 3])
    assert found(cache, key("AYC", spans=((4, 8, CAT),))) == [1, 2, 3]


@pytest.mark.parametrize("first", [4, 8, 12, 16])
def test_a_long_span_may_be_cut_anywhere(first: int) -> None:
    cache = new_cache()
    span: Spans = ((2, 15, CAT),)
    what = key("ABCD", spans=span)
    head = CacheKey(what.ids[:first], spans=span)
    lease, _ = extend(cache, cache.match(head), head, list(range(1, first // 4 + 1)))
    lease, remaps = extend(cache, lease, what, [1, 2, 3, 4])
    cache.release(lease)
    assert remaps == []
    assert found(cache, head) == [1, 2, 3, 4][: first // 4]
    assert found(cache, what) == [1, 2, 3, 4]
    assert found(cache, key("ABCD", spans=((2, 15, DOG),))) == []


def test_spans_in_any_order_are_one_key() -> None:
    spans = ((0, 3, CAT), (5, 9, DOG))
    one, other = segment_of(key("ABC", spans=spans), 12), segment_of(key("ABC", spans=spans[::-1]), 12)
    assert one.common(other) == 12


@pytest.mark.parametrize("spans", [((0, 3, CAT), (2, 5, DOG)), ((2, 2, CAT),), ((-1, 2, CAT),)])
def test_spans_that_overlap_or_are_empty_are_our_mistake(spans: Spans) -> None:
    with pytest.raises(AssertionError, match="empty or overlap"):
        segment_of(key("AB", spans=spans), 8)


def test_common_length_equals_a_comparison_token_by_token() -> None:
    random = np.random.default_rng(3)
    for _ in range(300):
        one, other = _random_key(random), _random_key(random)
        n = min(len(one.ids), len(other.ids))
        slow = next((i for i in range(n) if _identity(one, i) != _identity(other, i)), n)
        common = segment_of(one, len(one.ids)).common(segment_of(other, len(other.ids)))
        # A span that disagrees does so from its first token on.
        begins = [start for what in (one, other) for start, stop, _ in what.spans if start <= slow < stop]
        assert common in (slow, *begins)
        assert common <= slow


def _random_key(random: np.random.Generator) -> CacheKey:
    cuts = sorted(random.choice(24, 4, replace=False).tolist())
    spans = tuple(
        (cuts[i], cuts[i + 1], bytes(random.integers(0, 2, 1, np.uint8))) for i in (0, 2) if random.random() < 0.7
    )
    return CacheKey(random.integers(0, 2, int(random.integers(1, 24)), dtype=np.int32), spans=spans)


def _identity(what: CacheKey, position: int) -> object:
    for start, stop, digest in what.spans:
        if start <= position < stop:
            return (digest, stop - start, position - start)
    return int(what.ids[position])
