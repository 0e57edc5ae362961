"""Cache events for cache-aware routing, around another prefix cache: descriptor and options.

Imports nothing but the contract; `build` imports ZeroMQ. A router imports `client`, or reads README.md's tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES, Need, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor

TOPIC = "srtkit.cache"
UNFIT = {
    "chunk": "shares nothing, so it has nothing to tell",
    "hiradix": 'goes around it: use = "hiradix" with inner = { use = "events" }',
}
REACHES = {"radix": frozenset({"all", "window"}), "radix-native": frozenset({"all"})}
EVERY_REACH = frozenset({"all", "window", "snapshot"})
"""Of inner caches not in `REACHES`: what they do not keep their own build refuses."""


def _is_useful(table: dict[str, Any]) -> dict[str, Any]:
    name = table.get("use")
    if not isinstance(name, str):
        raise ValueError('name a cache: use = "…"')
    if name in UNFIT:
        raise ValueError(f"{name} {UNFIT[name]}")
    if not table.get("events", True):
        raise ValueError("events = false leaves nothing to publish; leave it out")
    return table


class EventsOptions(BaseModel):
    """`[prefix_cache.options.events]`: the cache that is told of, and where."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inner: Annotated[dict[str, Any], AfterValidator(_is_useful)] = Field(
        {"use": "radix"}, description="the cache that serves, and its options; its option `events` is switched on"
    )
    endpoint: str = Field(
        "tcp://127.0.0.1:*",
        pattern="^(tcp|ipc)://",
        description="where events are published (PUB is bound); port * is any free one, named in the log",
    )
    replay: str = Field(
        "tcp://127.0.0.1:*",
        pattern="^(tcp|ipc)://",
        description="where missed messages and snapshots are asked for (ROUTER is bound)",
    )
    topic: str = Field(TOPIC, description="first frame of every message, by which subscribers choose")
    ring: int = Field(10_000, ge=1, description="messages that can be replayed")
    high_water: int = Field(10_000, ge=1, description="messages a slow subscriber may be behind before it loses some")


def needs(options: BaseModel) -> Sequence[Need]:
    """The cache that serves, with its events on."""
    assert isinstance(options, EventsOptions)
    table = {"events": True, **options.inner}
    return [Need("inner", "prefix_cache", table.pop("use"), table)]


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Those of the inner cache without tiers; it takes that one's events itself, so core has none to ask for."""
    assert isinstance(options, EventsOptions)
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=REACHES.get(options.inner["use"], EVERY_REACH),
        shares=YES,
        tiers=No('it goes inside: use = "hiradix" with inner = { use = "events" }'),
        events=No("publishes them itself"),
    )


def build(args: PrefixCacheBuild) -> PrefixCache:
    """An empty cache with its sockets bound.

    Raises `ConfigError` for an endpoint that cannot be bound, `Unsupported` for an inner cache with tiers.
    """
    from srtkit_plugin_cache_events.cache import EventsCache

    assert isinstance(args.options, EventsOptions)
    return EventsCache(args, args.options)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `events`."""
    return PrefixCacheDescriptor(
        contract="1.0", options=EventsOptions, needs=needs, capabilities=capabilities, build=build
    )
