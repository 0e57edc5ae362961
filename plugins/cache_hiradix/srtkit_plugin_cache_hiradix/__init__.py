"""The prefix cache with tiers: descriptor and options. Imports nothing but the contract.

The cache is imported by `build` in the scheduler's process, the mover of bytes by `build_mover` on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from srtkit.spec.capabilities import YES, Need, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCache, PrefixCacheBuild, PrefixCacheDescriptor
from srtkit.spec.tiers import MoverBuild, TierMover


def _names_a_plugin(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("use"), str):
        raise ValueError('name a plugin: use = "…"')
    return table


Table = Annotated[dict[str, Any], AfterValidator(_names_a_plugin)]
"""`use` names a plugin, the rest is its own table of options."""


def _shares(table: dict[str, Any]) -> dict[str, Any]:
    if table["use"] == "chunk":
        raise ValueError("chunk shares nothing, so there is nothing to copy")
    return table


class HiradixOptions(BaseModel):
    """How much host memory, what goes there when, and which storage lies below."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host_gib: float = Field(4.0, gt=0, description="GiB of host memory for pages, on each rank")
    write_policy: Literal["write-through", "write-through-selective", "write-back"] = Field(
        "write-through", description="when pages are copied to the host: at once, when used again, when evicted"
    )
    selective_hits: PositiveInt = Field(2, description="how often a page is used again before write-through-selective")
    inner: Annotated[Table, AfterValidator(_shares)] = Field(
        {"use": "radix"}, description="the cache of the device's pages, and its options"
    )
    storage: Table | None = Field(None, description='a page store below the host: use = "files", and its options')
    overlap: Literal["auto", "on", "off"] = Field(
        "auto", description="whether copies run beside steps, on streams of their own; auto: on accelerators"
    )
    piece_kib: PositiveInt = Field(
        1024, description="KiB of a page that are one copy at least: so many layers are joined, and wait for one load"
    )
    store_seconds: float = Field(10.0, gt=0, description="after which a page that storage has not given is given up")
    fetch_policy: Literal["best-effort", "wait", "timeout"] = Field(
        "timeout", description="whether a request waits for pages that are coming from storage"
    )
    fetch_seconds: float = Field(1.0, ge=0, description="timeout: how long at most, …")
    fetch_seconds_per_1k: float = Field(0.25, ge=0, description="… and so much more for 1,000 tokens")
    fetch_tokens: PositiveInt = Field(256, description="fewer missing tokens are computed, not asked of storage")

    @property
    def fetch_wait(self) -> tuple[float, float]:
        """Seconds that a request waits, and seconds more for a token."""
        policies = {
            "best-effort": (0.0, 0.0),
            "wait": (self.store_seconds, 0.0),
            "timeout": (self.fetch_seconds, self.fetch_seconds_per_1k / 1000),
        }
        return policies[self.fetch_policy]

    def host_pages(self, page_bytes: int) -> int:
        """Pages of the host tier, each `page_bytes` over all layers and components."""
        return host_bytes(self) // max(1, page_bytes)


def host_bytes(options: BaseModel) -> int:
    """What the host tier takes on each rank."""
    assert isinstance(options, HiradixOptions)
    return int(options.host_gib * 2**30)


def capabilities(options: BaseModel) -> CacheCapabilities:
    """Components of reach "all"; events are those of the inner cache."""
    assert isinstance(options, HiradixOptions)
    return CacheCapabilities(
        page_sizes=range(1, 257),
        reaches=frozenset({"all"}),
        shares=YES,
        tiers=YES,
        events=YES if options.inner.get("events") else No("switched off; set events = true in the table `inner`"),
    )


def needs(options: BaseModel) -> Sequence[Need]:
    """The cache of the device's pages, and the storage if there is one."""
    assert isinstance(options, HiradixOptions)
    tables = {"inner": ("prefix_cache", options.inner), "storage": ("kv_store", options.storage)}
    return [
        Need(role, kind, table["use"], {key: value for key, value in table.items() if key != "use"})
        for role, (kind, table) in tables.items()
        if table is not None
    ]


def build(given: PrefixCacheBuild) -> PrefixCache:
    """An empty cache. Raises `Unsupported` for a component or page size that `capabilities` does not name."""
    from srtkit_plugin_cache_hiradix.cache import HiradixCache

    return HiradixCache(given)


def build_mover(given: MoverBuild) -> TierMover:
    """What moves the pages of one rank: host memory, streams of its own, threads for storage. Imports torch."""
    from srtkit_plugin_cache_hiradix.mover import Mover

    return Mover(given)


@hookimpl
def srtkit_prefix_cache() -> PrefixCacheDescriptor:
    """Offers the cache `hiradix`."""
    return PrefixCacheDescriptor(
        contract="1.0",
        options=HiradixOptions,
        needs=needs,
        capabilities=capabilities,
        build=build,
        mover=build_mover,
        host_bytes=host_bytes,
    )
