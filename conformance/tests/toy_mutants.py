"""Mutants and a variant of `prefix_cache:chunk` for the checks in `toy_checks` up to level 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from srtkit.spec.capabilities import YES
from srtkit.spec.prefix_cache import CacheCapabilities, PrefixCacheDescriptor
from srtkit_conformance.mutant import mutant, variant


def declaring(descriptor: PrefixCacheDescriptor, **changes: Any) -> PrefixCacheDescriptor:
    """The descriptor with other declarations."""
    declared: Callable[[BaseModel], CacheCapabilities] = descriptor.capabilities
    return replace(descriptor, capabilities=lambda options: replace(declared(options), **changes))


@mutant("toy_boasts", of="chunk", sentence="claims to share", killed_by=("prefix_cache.toy_shares",))
def boasts(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return declaring(descriptor, shares=YES)


@mutant("toy_picky", of="chunk", sentence="takes pages of 1", killed_by=("prefix_cache.toy_pages",))
def picky(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return declaring(descriptor, page_sizes=range(1, 2))


@variant("toy_modest", of="chunk", sentence="takes pages of 16 only")
def modest(descriptor: PrefixCacheDescriptor) -> PrefixCacheDescriptor:
    return declaring(descriptor, page_sizes=range(16, 17))
