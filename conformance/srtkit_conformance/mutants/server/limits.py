"""Limits that a plugin does not know it has: what it is asked for alone stays below, and a server goes beyond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from pydantic import BaseModel

from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionDescriptor
from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunnerDescriptor
from srtkit.spec.models import Model, ModelBuild, ModelsDescriptor
from srtkit.spec.prefix_cache import CacheKey, Evicted, Lease, PrefixCache, PrefixCacheBuild, Remap
from srtkit.spec.step_plan import Ints, StepKey
from srtkit_conformance.mutant import mutant, variant
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, around

ROWS = 16
LEASES = 16
PAGES = 48


@mutant(
    "server.sixteen_rows",
    of="attention:torch",
    sentence="is built for sixteen rows at most, and does not say so",
    killed_by=("server.ready",),
)
def sixteen_rows(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A server has more by default, and in a tour."""

    def build(given: AttentionBuild) -> AttentionBackend:
        if given.limits.max_rows > ROWS:
            raise RuntimeError("the workspace is too small")
        return descriptor.build(given)

    return replace(descriptor, build=build)


@mutant(
    "server.short_rope",
    of="models:models",
    sentence="has rotary tables for 64 positions, and begins again beyond",
    killed_by=("server.tokens",),
)
def short_rope(descriptor: ModelsDescriptor) -> ModelsDescriptor:
    """The suite's own small models are that short."""

    def build(given: ModelBuild) -> Model:
        from srtkit_conformance.mutants.server.heavy import ShortRope

        return ShortRope(descriptor.build(given))

    return replace(descriptor, build=build)


@mutant(
    "server.eight_rows",
    of="attention:torch",
    sentence="has room for the page tables of eight rows, and takes the eighth for all further ones",
    killed_by=("server.crowd",),
)
def eight_rows(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """One client alone never sees it."""

    def build(given: AttentionBuild) -> AttentionBackend:
        from srtkit_conformance.mutants.server.heavy import EightRows

        return EightRows(descriptor.build(given), given)

    return replace(descriptor, build=build)


@mutant(
    "server.small_batches",
    of="graph_runner:cuda-full",
    sentence="has no keys at all where a batch may have more than sixteen rows",
    killed_by=("server.tokens",),
)
def small_batches(descriptor: GraphRunnerDescriptor) -> GraphRunnerDescriptor:
    """Every step runs eagerly then, which is right, and slow."""

    def keys(limits: Limits, level: CaptureLevel, options: BaseModel) -> Sequence[StepKey]:
        return () if limits.max_rows > ROWS else descriptor.keys(limits, level, options)

    return replace(descriptor, keys=keys)


class FewPages(Wrapped):
    """Has a table of 48 pages, and begins again beyond."""

    def insert(self, lease: Lease, key: CacheKey, pages: Mapping[str, Ints], upto: int) -> tuple[Lease, list[Remap]]:
        kept = {name: np.where(ids > PAGES, ids - PAGES, ids) for name, ids in pages.items()}
        return super().insert(lease, key, kept, upto)


class ForgetsSome(Wrapped):
    """Has a table of sixteen open leases: a further one is pinned, and found nowhere when it is released."""

    def __init__(self, inner: PrefixCache, build: PrefixCacheBuild) -> None:
        super().__init__(inner, build)
        self.open = 0

    def match(self, key: CacheKey) -> Lease:
        if self.open >= LEASES:
            self.inner.match(key)
        self.open += 1
        return super().match(key)

    def release(self, lease: Lease) -> Evicted:
        self.open -= 1
        return super().release(lease)


few_pages = mutant(
    "server.few_pages",
    of="prefix_cache:radix",
    sentence="has a table of 48 pages, and begins again beyond",
    killed_by=("server.again",),
)(around(FewPages))
forgets_some = mutant(
    "server.forgets_some",
    of="prefix_cache:radix",
    sentence="does not take back all pins of a lease when more than sixteen are open",
    killed_by=("server.given_up",),
)(around(ForgetsSome))
passes_on = variant("server.passes_on", of="prefix_cache:radix", sentence="passes every call on")(around(Wrapped))
