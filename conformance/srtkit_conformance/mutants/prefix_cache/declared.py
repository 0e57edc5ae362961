"""Caches that are not what they declare."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from srtkit.spec.kv import Component
from srtkit.spec.prefix_cache import (
    CacheEvent,
    Evicted,
    PrefixCache,
    PrefixCacheBuild,
    PrefixCacheDescriptor,
    Transfer,
)
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.legal import WriteBackCache, with_events, with_tiers
from srtkit_conformance.mutants.prefix_cache.wrapping import BuildAround, Wrapped, around


@dataclass(frozen=True)
class BuildElse:
    """A build function that asks the plugin for something else than core did."""

    inner: Callable[[PrefixCacheBuild], PrefixCache]
    change: Callable[[PrefixCacheBuild], PrefixCacheBuild]

    def __call__(self, build: PrefixCacheBuild) -> PrefixCache:
        return self.inner(self.change(build))


def any_page_size(build: PrefixCacheBuild) -> PrefixCacheBuild:
    return replace(build, page_size=min(max(build.page_size, 1), 256))


def any_reach(build: PrefixCacheBuild) -> PrefixCacheBuild:
    components = [Component(one.name, lookahead=one.lookahead) for one in build.components]
    return replace(build, components=tuple(components))


def no_lookahead(build: PrefixCacheBuild) -> PrefixCacheBuild:
    return replace(build, components=tuple(replace(one, lookahead=0) for one in build.components))


class NeedsTorch(Wrapped):
    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        importlib.import_module("torch")


class ClosesOnce(Wrapped):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise ValueError("close of a closed cache")
        self.closed = True


class TellsNoRemoval(Wrapped):
    def events(self) -> list[CacheEvent]:
        return [event for event in self.inner.events() if event.kind != "removed"]


class WeakHashes(Wrapped):
    """Hashes of eight bits."""

    def events(self) -> list[CacheEvent]:
        return [
            replace(event, parent=event.parent % 251, hashes=tuple(one % 251 for one in event.hashes))
            for event in self.inner.events()
        ]


class UndeclaredTransfers(Wrapped):
    def transfers(self) -> list[Transfer]:
        return [Transfer(1, "full", "in", "host", self.inner.evict("full", 0).pages["full"], ())]


class FreesBeforeAck(WriteBackCache):
    def evict(self, component: str, n: int) -> Evicted:
        super().evict(component, n)
        return Evicted({one.component: one.here for one in self.new})


class LosesFailedCopies(WriteBackCache):
    def complete(self, done: Sequence[int], failed: Sequence[int]) -> Evicted:
        super().complete([], failed)
        return super().complete(done, [])


def _build_else(change: Callable[[PrefixCacheBuild], PrefixCacheBuild]) -> Callable[..., PrefixCacheDescriptor]:
    return lambda descriptor: replace(descriptor, build=BuildElse(descriptor.build, change))


needs_torch = mutant(
    "prefix_cache.needs_torch",
    of="radix",
    sentence="Imports torch when it is built.",
    killed_by=("prefix_cache.no_torch",),
)(around(NeedsTorch))

closes_once = mutant(
    "prefix_cache.closes_once",
    of="radix",
    sentence="Cannot be closed twice.",
    killed_by=("prefix_cache.close",),
)(around(ClosesOnce))

takes_any_page_size = mutant(
    "prefix_cache.takes_any_page_size",
    of="radix",
    sentence="Rounds an undeclared page size to one it knows.",
    killed_by=("prefix_cache.page_sizes",),
)(_build_else(any_page_size))

takes_any_reach = mutant(
    "prefix_cache.takes_any_reach",
    of="radix",
    sentence="Takes a window for a component that needs all tokens.",
    killed_by=("prefix_cache.reaches",),
)(_build_else(any_reach))

ignores_lookahead = mutant(
    "prefix_cache.ignores_lookahead",
    of="radix",
    sentence="Shares the last page of a component that looks ahead.",
    killed_by=("prefix_cache.lookahead",),
)(_build_else(no_lookahead))


@mutant(
    "prefix_cache.tells_no_removal",
    of="radix",
    sentence="Says what it stores, not what it removes.",
    killed_by=("prefix_cache.events",),
)
def tells_no_removal(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return replace(with_events(descriptor), build=BuildAround(descriptor.build, TellsNoRemoval))


@mutant(
    "prefix_cache.weak_event_hashes",
    of="radix",
    sentence="Gives different pages the same hash in its events.",
    killed_by=("prefix_cache.events",),
    note="the one check of events; hashes are another fault than removals",
)
def weak_event_hashes(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return replace(with_events(descriptor), build=BuildAround(descriptor.build, WeakHashes))


undeclared_transfers = mutant(
    "prefix_cache.undeclared_transfers",
    of="radix",
    sentence="Asks for a copy although it declares no tiers.",
    killed_by=("prefix_cache.tiers",),
)(around(UndeclaredTransfers))


@mutant(
    "prefix_cache.frees_before_ack",
    of="radix",
    sentence="Gives pages back while they are being copied out.",
    killed_by=("prefix_cache.tiers",),
    note="breaks every eviction, which all checks need",
)
def frees_before_ack(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return with_tiers(descriptor, FreesBeforeAck)


@mutant(
    "prefix_cache.loses_failed_copies",
    of="radix",
    sentence="Pages whose copy failed never come back.",
    killed_by=("prefix_cache.tiers",),
)
def loses_failed_copies(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return with_tiers(descriptor, LosesFailedCopies)


@mutant(
    "prefix_cache.host_in_gib",
    of="radix",
    sentence="Says how many GiB it takes on the host, not how many bytes.",
    killed_by=("prefix_cache.host_bytes",),
)
def host_in_gib(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return replace(descriptor, host_bytes=lambda options: 0.5)  # type: ignore[arg-type,return-value]
