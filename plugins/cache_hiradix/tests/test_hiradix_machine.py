"""The cache against a model of the bytes: whatever is evicted, loaded, stored, lost or late, a lease holds its prefix.

The suite's caller checks every answer and knows what each page holds; it plays the mover, too, and fails where told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import PrefixCache, PrefixCacheBuild, Transfer
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.needs import needs_of
from srtkit_conformance.kits.prefix_cache.prompts import Prompt, letters, numbered
from srtkit_conformance.kits.prefix_cache.tiers import TieredCaller
from srtkit_plugin_cache_hiradix import HiradixOptions, build, srtkit_prefix_cache

PAGE = 4
Policy = str


def cache_of(names: tuple[str, ...] = ("full",), *, host_pages: int = 30, **options: object) -> PrefixCache:
    """`host_pages` pages of 1 byte each."""
    given = HiradixOptions.model_validate({"host_gib": (host_pages + 0.5) / 2**30, **options})
    request = PrefixCacheBuild(PAGE, tuple(Component(name) for name in names), given, b"model", page_bytes=1)
    stores = {"prefix_cache": request, "kv_store": None}
    inner = needs_of(srtkit_prefix_cache(), given.model_copy(update={"storage": None}), stores)
    return build(replace(request, needs=inner))


def new(names: tuple[str, ...] = ("full",), total: int = 20, **options: object) -> TieredCaller:
    return TieredCaller(cache_of(names, **options), PAGE, [Component(name) for name in names], total)


def hanging(names: tuple[str, ...] = ("full",), total: int = 20, **options: object) -> Hanging:
    return Hanging(cache_of(names, **options), PAGE, [Component(name) for name in names], total)


class Hanging(TieredCaller):
    """Storage takes its time: what is asked of it comes at a later run, when much else has come and gone."""

    def __init__(self, *given: Any, share: float = 0.8) -> None:
        super().__init__(*given)
        self.late: list[Transfer] = []
        self.share = share
        self._random = np.random.default_rng(7)

    def run(self, fails: Callable[[Transfer], bool] = lambda one: False) -> None:
        asked = [*self.late, *self.flying, *self.cache.transfers()]
        reads = [one for one in asked if (one.tier, one.direction) == ("storage", "in")]
        self.late = [one for one in reads if self._random.random() < self.share]
        self.flying = [one for one in asked if one not in self.late]
        super().run(fails)


def prompts(*texts: str) -> list[Prompt]:
    return numbered(PAGE, [letters(PAGE, text) for text in texts])


@pytest.mark.parametrize("policy", ["write-through", "write-through-selective", "write-back"])
@pytest.mark.parametrize("names", [("full",), ("full", "indexer")])
@pytest.mark.parametrize("kind", [new, hanging])
def test_random_traffic_keeps_every_promise(
    kind: Callable[..., TieredCaller], policy: Policy, names: tuple[str, ...]
) -> None:
    caller = kind(names, write_policy=policy, storage={"use": "files"}, fetch_tokens=PAGE)
    random = np.random.default_rng(5)
    pool = prompts(*("".join(random.choice(list("AB"), int(random.integers(1, 7)))) for _ in range(25)))
    loaded = 0
    for turn in range(600):
        prompt = pool[int(random.integers(len(pool)))]
        what = random.choice(["serve", "start", "evict", "run", "fail", "fetch", "reset"], p=_SHARES)
        if what == "serve" and (one := caller.start(prompt)):
            caller.end(one)
        elif what == "start":
            loaded += caller.load(prompt)
        elif what == "evict":
            caller.evict(names[0], int(random.integers(1, 8)))
        elif what == "fail":
            caller.run(lambda one: bool(random.integers(2)))
        elif what == "fetch":
            caller.cache.fetch(prompt.key)
        elif what == "reset" and turn % 5 == 0:
            caller.run()
            caller.reset()
        if what != "evict" or policy == "write-back":
            caller.run()
        caller.check_counts()
    assert loaded > 100
    assert caller.moved > 50


_SHARES = [0.3, 0.25, 0.2, 0.1, 0.05, 0.08, 0.02]


def test_what_was_evicted_comes_back_from_the_host() -> None:
    caller = new()
    [prompt] = prompts("ABCDE")
    caller.store(prompt)
    caller.run()
    caller.press()
    assert caller.cache.peek([prompt.key]) == [0]
    assert caller.load(prompt) == 5 * PAGE
    assert caller.cache.peek([prompt.key]) == [5 * PAGE]


def test_write_back_keeps_a_page_until_its_copy_is_done() -> None:
    caller = new(write_policy="write-back")
    [prompt] = prompts("ABC")
    caller.store(prompt)
    assert caller.cache.transfers() == []
    evicted = caller.cache.evict("full", 2)
    assert (evicted.pages["full"].tolist(), evicted.pending) == ([], 2)
    caller.run()
    assert caller.ledgers["full"].count("free") == 19
    assert caller.load(prompt) == 2 * PAGE


def test_selective_saves_what_is_used_again() -> None:
    caller = new(write_policy="write-through-selective", selective_hits=2)
    [prompt] = prompts("ABC")
    caller.store(prompt)
    for expected in (0, 1):
        caller.release(caller.match(prompt))
        assert len(caller.cache.transfers()) == expected


def test_a_failed_save_is_found_nowhere_and_a_failed_load_forgets_all() -> None:
    caller = new()
    first, second = prompts("ABC", "XYZ")
    caller.store(first)
    caller.run(lambda one: True)
    assert caller.cache.stats().tiers["host"]["failed"] == 3
    caller.store(second)
    caller.run()
    caller.press()
    assert caller.match(first).pending == 0
    lease = caller.match(second)
    lease = caller.cache.load(lease, caller.rubbish(3))
    assert caller.cache.peek([second.key]) == [3 * PAGE]
    caller.run(lambda one: True)
    assert caller.cache.peek([second.key]) == [0]
    assert caller.cache.stats().tiers["host"]["failed"] == 6
    caller.take_back(caller.cache.release(lease))
    assert caller.match(second).pending == 0
    assert caller.ledgers["full"].count("free") == 20


def test_the_host_gives_up_what_was_not_used_for_longest_and_ends_before_beginnings() -> None:
    caller = new(host_pages=6)
    first, second, third = prompts("ABCD", "XY", "QR")
    for prompt in (first, second, third):
        caller.store(prompt)
        caller.run()
    caller.press()
    assert [caller.match(prompt).pending // PAGE for prompt in (first, second, third)] == [2, 2, 2]


def test_storage_brings_back_what_host_memory_has_lost() -> None:
    caller = new(storage={"use": "files"}, fetch_tokens=2 * PAGE, fetch_policy="wait")
    cache = caller.cache
    known, unknown, short = prompts("ABCD", "UVWX", "A")
    caller.store(known)
    caller.run()
    caller.run()
    caller.reset()
    assert cache.fetch(short.key) == 0
    ticket, other, nothing = cache.fetch(known.key), cache.fetch(known.key), cache.fetch(unknown.key)
    assert ticket == other and cache.fetching(ticket) and cache.fetching(nothing)
    caller.run()
    assert not cache.fetching(ticket) and not cache.fetching(nothing)
    assert caller.load(known) == 4 * PAGE
    assert caller.match(unknown).pending == 0


@pytest.mark.parametrize("names", [("full",), ("full", "indexer")])
@pytest.mark.parametrize("policy", ["write-through", "write-back"])
@pytest.mark.parametrize("fails", [True, False])
def test_what_storage_was_to_bring_is_saved_when_it_is_computed(
    fails: bool, policy: Policy, names: tuple[str, ...]
) -> None:
    """Nobody saves it later. And what storage brings after all reaches no page of another."""
    options: dict[str, Any] = {"storage": {"use": "files"}, "fetch_tokens": PAGE, "fetch_policy": "wait"}
    caller = hanging(names, host_pages=10, write_policy=policy, **options)
    first, *others = prompts("ABCDE", "QRSTU", "VWXYZ")
    ticket = caller.cache.fetch(first.key)
    caller.share = 1.0
    caller.store(first)
    caller.run()
    caller.press()
    assert caller.cache.fetching(ticket) and len(caller.late) == 5 * len(names)
    caller.storage = {key: -2 for one in caller.late for key in one.there}  # no prefix has that
    assert caller.load(first) == 5 * PAGE
    caller.share = 0.0
    caller.run(lambda one: fails and one.tier == "storage")
    assert not caller.cache.fetching(ticket)
    caller.press()
    assert caller.load(first) == 5 * PAGE
    figures = caller.cache.stats().tiers
    assert (figures["host"]["used"], figures["host"]["written"]) == (5, 5)
    assert (figures["storage"]["read"], figures["storage"]["misses"]) == ((0, 5) if fails else (5, 0))
    for prompt in others:
        caller.store(prompt)
        caller.press()
    assert [caller.match(one).pending // PAGE for one in others] == [5, 5], "pages of the host are lost"


def test_half_of_the_host_takes_what_is_saved_however_much_is_asked_of_storage() -> None:
    caller = hanging(host_pages=8, storage={"use": "files"}, fetch_tokens=PAGE)
    caller.share = 1.0
    asked = prompts("ABCD", "EFGH", "IJKL")
    for prompt in asked:
        caller.cache.fetch(prompt.key)
    caller.run()
    assert len(caller.late) == 4
    caller.store(asked[2])
    caller.run()
    caller.press()
    assert caller.load(asked[2]) == 4 * PAGE
    caller.share = 0.0
    caller.run()
    caller.cache.fetch(asked[1].key)
    assert len(caller.cache.transfers()) == 4


def test_storage_can_be_left_out_and_used_again() -> None:
    caller = new(storage={"use": "files"}, fetch_tokens=PAGE, fetch_policy="wait")
    cache = caller.cache
    first, second = prompts("ABCD", "QRST")
    assert cache.stats().tiers["storage"]["attached"] == 1
    caller.store(first)
    caller.run()
    assert cache.use_storage(False)
    caller.run()  # what was under way before
    assert len(caller.storage) == 4
    assert cache.stats().tiers["storage"]["attached"] == 0
    caller.store(second)
    caller.run()
    caller.run()
    assert len(caller.storage) == 4
    caller.reset()
    assert cache.fetch(first.key) == 0
    assert cache.use_storage(True)
    assert cache.fetch(first.key) > 0
    caller.run()
    assert caller.load(first) == 4 * PAGE
    figures = {"attached": 1, "read": 4, "misses": 0, "written": 4, "failed": 0}
    assert cache.stats().tiers["storage"] == figures
    assert not new().cache.use_storage(True)


def test_figures_and_outline_tell_what_the_host_has() -> None:
    caller = new(host_pages=6)
    first, second = prompts("ABCD", "QRSX")
    for prompt in (first, second):
        caller.store(prompt)
        caller.run()
    one = caller.match(second)
    assert [(len(it.pages["full"]), it.tiers, it.pins) for it in caller.cache.outline(10, 0)] == [
        (4, {"host": 4}, 1),
        (4, {"host": 2}, 0),
    ]
    caller.release(one)
    figures = {"pages": 6, "used": 6, "bytes": 6, "read": 0, "written": 8, "failed": 0}
    assert caller.cache.stats().tiers == {"host": figures}


def test_nobody_waits_for_a_store_longer_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("srtkit_plugin_cache_hiradix.cache.time.monotonic", lambda: now[0])
    options = {"storage": {"use": "files"}, "fetch_tokens": PAGE, "fetch_seconds": 0.5, "fetch_seconds_per_1k": 100.0}
    cache = cache_of(**options)
    [prompt] = prompts("ABCDE")
    ticket = cache.fetch(prompt.key)
    for seconds, waits in ((0.0, True), (2.4, True), (0.2, False)):
        now[0] += seconds
        assert cache.fetching(ticket) is waits
    assert cache_of(**{**options, "fetch_policy": "best-effort"}).fetch(prompt.key) == 0


def test_names_cover_tokens_namespace_spans_and_model() -> None:
    from srtkit_plugin_cache_hiradix.page_keys import PageKeys

    base = letters(PAGE, "ABC")
    spans = tuple((2, 6, digest) for digest in (b"image", b"other"))
    keys = [
        base,
        letters(PAGE, "ABC", b"adapter"),
        letters(PAGE, "XBC"),
        *(replace(base, spans=(span,)) for span in spans),
        replace(base, spans=((2, 7, b"image"),)),
    ]
    names = [PageKeys(model, PAGE).extended([], key, 3) for key in keys for model in (b"a", b"b")]
    assert all(len({chain[i] for chain in names}) == len(names) for i in range(3))
    keyed = PageKeys(b"a", PAGE)
    assert keyed.extended(names[0][:1], base, 3) == names[0]
    hidden = replace(base, ids=base.ids.copy(), spans=spans[:1])
    hidden.ids[3] += 1  # under the span: it identifies nothing
    assert keyed.extended([], hidden, 3) == keyed.extended([], keys[3], 3)


@pytest.mark.full
@pytest.mark.parametrize("policy", ["write-through-selective", "write-back"])
def test_it_keeps_the_contract_under_every_policy(policy: Policy) -> None:
    assert shortcomings("prefix_cache:hiradix", level=2, write_policy=policy) == []
