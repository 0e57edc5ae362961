"""Events let a router know what is cached, by content hashes alone."""

from __future__ import annotations

from plugins.cache_radix.tests.helpers import key, new_cache, store
from srtkit_plugin_cache_radix import RadixOptions, capabilities


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
