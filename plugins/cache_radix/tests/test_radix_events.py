"""Events let a router know what is cached, by content hashes alone."""

from __future__ import annotations

import numpy as np

from plugins.cache_radix.tests.helpers import extend, key, new_cache, store
from srtkit.spec.prefix_cache import CacheEvent
from srtkit_plugin_cache_radix import RadixOptions, capabilities


class Router:
    """What a listener knows: the hashes it was told of, chained to what stands before them."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def hear(self, events: list[CacheEvent]) -> None:
        for event in events:
            if event.kind == "cleared":
                self.known.clear()
                continue
            assert event.parent == 0 or event.parent in self.known
            hashes = set(event.hashes)
            assert len(hashes) == len(event.hashes)
            if event.kind == "stored":
                assert not hashes & self.known
                self.known |= hashes
            else:
                assert hashes <= self.known
                self.known -= hashes


def test_a_listener_can_follow_random_traffic() -> None:
    random = np.random.default_rng(7)
    cache, router = new_cache(events=True), Router()
    page = 0
    for step in range(400):
        letters = "".join(random.choice(list("ABC"), int(random.integers(1, 7))))
        what = key(letters, namespace=bytes(random.integers(0, 2, 1, np.uint8)))
        lease = cache.match(what)
        own = len(letters) - lease.length // 4
        lease, _ = extend(cache, lease, what, [*lease.pages["full"].tolist(), *range(page, page + own)])
        page += own
        cache.release(lease)
        cache.evict("full", max(0, cache.stats().cached_pages["full"] - 30))
        if step == 200:
            cache.reset()
        router.hear(cache.events())
        assert len(router.known) == cache.stats().cached_pages["full"]
    assert cache.events() == []


def test_hashes_depend_on_the_whole_prefix_and_nothing_else() -> None:
    def hashes(letters: str, namespace: bytes = b"", pieces: int = 1, digest: bytes = b"") -> tuple[int, ...]:
        cache = new_cache(events=True)
        spans = ((1, 3, digest),) if digest else ()
        for end in range(1, pieces + 1):
            part = letters[: len(letters) * end // pieces]
            store(cache, key(part, namespace, spans), range(10 * end, 10 * end + len(part)))
        return tuple(one for event in cache.events() for one in event.hashes)

    one = hashes("ABCD")
    assert len(set(one)) == 4
    assert all(0 < number < 2**64 for number in one)
    assert hashes("ABCD", pieces=2) == one
    assert hashes("ABXD")[:2] == one[:2]
    assert not set(hashes("ABXD")[2:]) & set(one)
    assert not set(hashes("XBCD")) & set(one)
    assert not set(hashes("ABCD", b"adapter")) & set(one)
    assert not set(hashes("ABCD", digest=b"cat")) & set(one)
    assert not set(hashes("ABCD", digest=b"cat")) & set(hashes("ABCD", digest=b"dog"))


def test_off_unless_asked_for() -> None:
    cache = new_cache()
    store(cache, key("AB"), [1, 2])
    cache.evict("full", 1)
    cache.reset()
    assert cache.events() == []
    assert not capabilities(RadixOptions()).events
    assert capabilities(RadixOptions(events=True)).events
