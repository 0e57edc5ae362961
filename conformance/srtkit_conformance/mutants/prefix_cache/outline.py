"""Caches that show something else than they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from srtkit.spec.prefix_cache import Prefix
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.prefix_cache.wrapping import Wrapped, around


class ShowsEndsFirst(Wrapped):
    """Lists prefixes in the reverse order, with the places of before."""

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        return list(reversed(super().outline(limit, tokens)))


class ShowsParentsPages(Wrapped):
    """Counts the pages of what a prefix extends with its own."""

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        found = super().outline(limit, tokens)
        return [replace(one, pages=found[one.parent].pages) if one.parent >= 0 else one for one in found]


class ShowsNobodyHolding(Wrapped):
    """Knows no leases."""

    def outline(self, limit: int, tokens: int) -> Sequence[Prefix]:
        return [replace(one, pins=0) for one in super().outline(limit, tokens)]


ends_first = mutant(
    "prefix_cache.shows_ends_first",
    of="radix",
    sentence="Shows prefixes before what they extend.",
    killed_by=("prefix_cache.outline",),
)(around(ShowsEndsFirst))
parents_pages = mutant(
    "prefix_cache.shows_parents_pages",
    of="radix",
    sentence="Shows a prefix with the pages of what it extends.",
    killed_by=("prefix_cache.outline",),
    note="the order is right, the pages are not",
)(around(ShowsParentsPages))
nobody_holding = mutant(
    "prefix_cache.shows_nobody_holding",
    of="radix",
    sentence="Shows no prefix as held.",
    killed_by=("prefix_cache.outline",),
    note="pins, the one thing that leases change",
)(around(ShowsNobodyHolding))
