"""What is put comes back; what was not used for longest goes; nothing is there after close."""

from __future__ import annotations

from srtkit.spec.capabilities import No
from srtkit.spec.kv_store import KEY_BYTES, KVStore, KVStoreBuild, Reply
from srtkit_plugin_kv_store_my_plugin import Options, srtkit_kv_store

KEYS = [bytes([number]) * KEY_BYTES for number in range(4)]


def store(max_pages: int = 3) -> KVStore:
    return srtkit_kv_store().build(KVStoreBuild(Options(max_pages=max_pages)))


def test_it_says_that_it_ends_with_its_process() -> None:
    answer = srtkit_kv_store().capabilities(Options())
    assert isinstance(answer.persistent, No) and isinstance(answer.shared, No)


def test_what_is_put_comes_back() -> None:
    one = store()
    assert one.put([(KEYS[0], memoryview(b"page")), (KEYS[1], b"")], 1.0) == Reply((True, True))
    assert one.get([KEYS[1], KEYS[2], KEYS[0]], 1.0) == Reply((b"", None, b"page"))
    assert one.exists([KEYS[0], KEYS[2]], 1.0) == Reply((True, False))


def test_what_was_not_used_for_longest_goes() -> None:
    one = store()
    one.put([(key, b"page") for key in KEYS[:3]], 1.0)
    one.get([KEYS[0]], 1.0)
    one.put([(KEYS[3], b"page")], 1.0)
    assert one.exists(KEYS, 1.0).values == (True, False, True, True)


def test_nothing_is_there_after_close() -> None:
    one = store()
    one.put([(KEYS[0], b"page")], 1.0)
    one.close()
    one.close()
    for reply in (one.put([(KEYS[1], b"page")], 1.0), one.get(KEYS[:1], 1.0), one.exists(KEYS[:1], 1.0)):
        assert not any(reply.values) and reply.error
