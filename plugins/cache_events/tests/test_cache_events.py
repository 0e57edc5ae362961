"""The cache is the inner cache, and whoever follows its events knows what is cached."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from plugins.cache_events.tests.helpers import PAGE, Life, catches_up, endpoints, follow, new_cache, until
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.spec.errors import ConfigError, Unsupported
from srtkit.spec.kv import FULL
from srtkit.spec.prefix_cache import CacheKey, PrefixCache, PrefixCacheBuild
from srtkit_conformance.inside import shortcomings
from srtkit_plugin_cache_events import EventsOptions, build, capabilities
from srtkit_plugin_cache_events.client import Follower, page_hashes
from srtkit_plugin_cache_hiradix import HiradixOptions
from srtkit_plugin_cache_hiradix import build as build_hiradix
from srtkit_plugin_cache_radix import RadixOptions
from srtkit_plugin_cache_radix import build as build_radix
from srtkit_plugin_cache_radix_native import LIBRARY

INNERS = ["radix", *(["radix-native"] if LIBRARY.exists() else [])]


@pytest.mark.full
@pytest.mark.parametrize("inner", [*INNERS, "mamba"])
def test_it_keeps_the_contract_around_any_cache(inner: str) -> None:
    """Around `radix` its certificate says so, too."""
    assert shortcomings("prefix_cache:events", level=2, inner={"use": inner}) == []


@pytest.mark.parametrize("inner", INNERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_follower_knows_what_is_cached(inner: str, seed: int) -> None:
    """One from the beginning, one that comes late. Truth is what `peek` finds, hashed by the router's function."""
    cache = new_cache(inner={"use": inner})
    life = Life(cache, seed)
    first = follow(cache)
    seen = 0
    for round_ in range(6):
        life.live(40)
        seen += len(life.truth())
        assert catches_up(first, life.truth())
        if round_ == 3:
            late = follow(cache)
        if round_ >= 3:
            assert catches_up(late, life.truth())
    assert seen > 40  # there was something to know
    assert late.views["a"].snapshots == 1
    for follower in (first, late):
        follower.close()
    cache.close()


def test_a_router_finds_who_has_a_prompt() -> None:
    caches = {"a": new_cache(), "b": new_cache()}
    ids = np.arange(100, 100 + 5 * PAGE, dtype=np.int32)
    for cache, pages in (caches["a"], 5), (caches["b"], 2):
        store(cache, CacheKey(ids[: pages * PAGE], b"salt"), pages)
    follower = Follower({name: endpoints(cache) for name, cache in caches.items()})
    asked = page_hashes(np.append(ids, [1, 2, 3, 4]), PAGE, b"salt")
    while not all(view.current for view in follower.views.values()):
        follower.poll(0.01)
    assert follower.leading(asked) == {"a": 5, "b": 2}
    assert follower.leading(page_hashes(ids, PAGE)) == {"a": 0, "b": 0}  # another salt
    caches["a"].evict("full", 2)
    until(follower, lambda view: len(view.hashes) == 3)
    assert follower.leading(asked) == {"a": 3, "b": 2}
    follower.close()
    for cache in caches.values():
        cache.close()


def test_a_server_that_starts_again_is_empty(tmp_path: Path) -> None:
    where = {"endpoint": f"ipc://{tmp_path}/e", "replay": f"ipc://{tmp_path}/r"}
    follower = Follower({"a": (where["endpoint"], where["replay"])}, check_seconds=0.1)
    assert follower.poll(0.1) == 0  # nobody there yet
    cache = new_cache(**where)
    store(cache, CacheKey(np.arange(12, dtype=np.int32)), 3)
    run = until(follower, lambda view: len(view.hashes) == 3).run
    cache.close()
    cache = new_cache(**where)
    assert until(follower, lambda view: view.run not in (0, run)).hashes == set()
    store(cache, CacheKey(np.arange(4, dtype=np.int32)), 1)
    until(follower, lambda view: len(view.hashes) == 1)
    follower.close()
    cache.close()


@pytest.mark.parametrize("option", ["endpoint", "replay"])
def test_an_endpoint_that_cannot_be_bound_is_an_error_at_start(option: str) -> None:
    first = new_cache()
    taken = endpoints(first)[0]
    with pytest.raises(ConfigError, match=f"{taken} cannot be bound: Address already in use") as error:
        new_cache(**{option: taken})
    assert error.value.part == f"prefix_cache.options.events.{option}"
    assert "port that is free" in error.value.remedy
    with pytest.raises(ConfigError, match="cannot be bound"):
        new_cache(**{option: "tcp://203.0.113.1:5557"})  # no address of this host
    first.close()
    new_cache(**{option: taken}).close()  # free again


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endpoint": "inproc://events"}, "endpoint"),
        ({"inner": {"events": True}}, "name a cache"),
        ({"inner": {"use": "radix", "events": False}}, "nothing to publish"),
        ({"inner": {"use": "chunk"}}, "nothing to tell"),
        ({"inner": {"use": "hiradix"}}, "goes around it"),
        ({"ring": 0}, "ring"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        EventsOptions.model_validate(options)


def test_core_has_no_events_to_ask_it_for() -> None:
    can = capabilities(EventsOptions())
    assert not can.events
    assert not can.tiers


@pytest.mark.parametrize("inner", [*INNERS, "mamba"])
def test_it_keeps_the_components_that_the_inner_cache_keeps(inner: str) -> None:
    descriptor = load(discover().find("prefix_cache", inner))
    theirs = descriptor.capabilities(descriptor.options())
    mine = capabilities(EventsOptions(inner={"use": inner}))
    assert (mine.reaches, mine.page_sizes, mine.shares) == (theirs.reaches, theirs.page_sizes, theirs.shares)


def test_inside_a_cache_with_tiers_it_tells_what_the_device_has_and_outside_it_is_refused() -> None:
    events = new_cache()
    tiered = build_hiradix(request(HiradixOptions(host_gib=0.001, write_policy="write-back"), inner=events))
    store(tiered, CacheKey(np.arange(12, dtype=np.int32)), 3)
    follower = follow(events)
    until(follower, lambda view: len(view.hashes) == 3)
    tiered.evict("full", 1)
    until(follower, lambda view: len(view.hashes) == 2)
    follower.close()
    tiered.close()
    hiradix = build_hiradix(request(HiradixOptions(), inner=build_radix(request(RadixOptions()))))
    with pytest.raises(Unsupported, match="has tiers") as error:
        build(request(EventsOptions(inner={"use": "theirs"}), inner=hiradix))
    assert error.value.remedy.startswith('use = "theirs" with inner = { use = "events" }')


def test_what_is_cached_can_be_looked_at() -> None:
    cache = new_cache(inner={"use": "radix"})
    key = CacheKey(np.arange(3 * PAGE, dtype=np.int32))
    store(cache, key, 3)
    [one] = cache.outline(10, 2)
    assert (one.length, one.ids) == (3 * PAGE, (0, 1))
    cache.close()


def request(options: object, **needs: PrefixCache) -> PrefixCacheBuild:
    return PrefixCacheBuild(PAGE, (FULL,), options, needs=needs, page_bytes=1024)  # type: ignore[arg-type]


def store(cache: PrefixCache, key: CacheKey, pages: int) -> None:
    row = np.arange(1, pages + 1, dtype=np.int32)
    lease, _ = cache.insert(cache.match(key), key, {"full": row}, len(key.ids))
    cache.release(lease)
