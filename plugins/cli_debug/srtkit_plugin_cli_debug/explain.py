"""Which keys a backend really reads: attention weights, measured by values that say where they stand.

With a one-hot vector of its slot as each token's value, the result of a head is its weights; with keys of zero besides
they are equal for all keys that are read. Then what they tell in words. For "nhd/1" and plain floating-point entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby

import torch
from torch import Tensor

from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_shadow.compare import errors
from srtkit_plugin_attention_shadow.dump import Dump
from srtkit_plugin_cli_debug.cuts import of_heads
from srtkit_plugin_cli_debug.player import Player
from srtkit_plugin_cli_debug.reduce import Judge, Verdict

MOST_SLOTS = 2048
VISIBLE = 2e-3
"""Difference of weights that is told; rounding in bfloat16 stays below for all but the largest."""
VISIBLE_OF_EQUAL = 0.1
"""The same, of equal weights, as a share of one."""


class Place(IntEnum):
    """What a slot is to a row."""

    KEY = 0
    TAIL = 1
    OTHER = 2


@dataclass(frozen=True)
class Keys:
    """A run of slots of one sort, with the weight expected of each and the weight seen.

    `first` and `last` are positions in the row, of slots in pages that are not the row's slot numbers.
    """

    place: Place
    first: int
    last: int
    page_tokens: int
    expected: float
    seen: float

    @property
    def name(self) -> str:
        """How messages name it."""
        first, last = self.first, self.last
        span = f"{first}" if first == last else f"{first}–{last}"
        if self.place is Place.OTHER:
            return f"slots {span} of other pages"
        if self.place is Place.TAIL:
            return f"{span}, behind the last token"
        page, last_page = first // self.page_tokens, last // self.page_tokens
        return f"keys {span} (page {page if page == last_page else f'{page}–{last_page}'} of the row)"

    def __str__(self) -> str:
        return f"{self.name:<34} expected {self.expected:.4f}   seen {self.seen:.4f}"


@dataclass(frozen=True)
class Reading:
    """What the worst query and head read wrongly; `equal`: with keys of zero, so that weights say how often."""

    keys: list[Keys]
    equal: bool


def weights(player: Player, dump: Dump, *, equal: bool, reused: bool = False) -> Tensor:
    """Weights float32 [T, q_heads, slots] that a backend gives the entries of every slot of the dump's pages.

    `equal`: with keys of zero. Raises `Unsupported` for a layout or a dtype in which values cannot be written plainly.
    """
    v = dump.planes.get("v")
    if dump.meta.layout.name != "nhd/1" or v is None or v.dtype.itemsize == 1:
        raise Unsupported("srt debug", "weights are measured in pages of layout nhd/1 that are not fp8")
    pages, page, _, size = v.shape
    slots = pages * page
    if slots > MOST_SLOTS:
        raise Unsupported("srt debug", f"weights of {slots} slots take too long to measure")
    found = []
    k = torch.zeros_like(dump.planes["k"]) if equal else dump.planes["k"]
    for first in range(0, slots, size):
        marked = torch.zeros_like(v)
        for one in range(first, min(first + size, slots)):
            marked[one // page, one % page, :, one - first] = 1
        found.append(player.play(dump, reused=reused, planes={"k": k, "v": marked}).float())
    return torch.cat(found, -1)[..., :slots]


def reading(judge: Judge, verdict: Verdict) -> Reading:
    """Where the weights of the worst query and head differ: equal ones, or if they do not, those of the dump's keys."""
    for equal in (True, False):
        if wrong := _wrong_keys(judge, verdict, equal):
            return Reading(wrong, equal)
    return Reading([], False)


def _wrong_keys(judge: Judge, verdict: Verdict, equal: bool) -> list[Keys]:
    dump, worst = verdict.dump, verdict.worst
    seen = weights(judge.live, dump, equal=equal, reused=judge.reused)[worst.token, worst.head]
    expected = weights(judge.reference, dump, equal=equal)[worst.token, worst.head]
    places = _places(dump, worst.row)
    limit = VISIBLE_OF_EQUAL * float(min(expected.max(), seen.max())) if equal else VISIBLE
    off = ((seen - expected).abs() > limit).tolist()
    wrong = [(slot, places[slot]) for slot in sorted(places, key=lambda slot: places[slot]) if off[slot]]
    told = []
    for _, run in groupby(enumerate(wrong), key=lambda one: _alike(one, seen > expected)):
        members = [one for _, one in run]
        at = [slot for slot, _ in members]
        place, first = members[0][1]
        weight = float(expected[at].mean()), float(seen[at].mean())
        told.append(Keys(place, first, members[-1][1][1], dump.meta.layout.page_tokens, *weight))
    return told


def _alike(one: tuple[int, tuple[int, tuple[Place, int]]], more: Tensor) -> tuple[Place, int, bool]:
    """Equal for neighbours of one sort whose weights differ in the same direction."""
    number, (slot, (place, position)) = one
    return place, position - number, bool(more[slot])


def _places(dump: Dump, row: int) -> dict[int, tuple[Place, int]]:
    """What each slot is to the row, and its position there, or its own number."""
    page, context = dump.meta.layout.page_tokens, int(dump.context[row])
    places = {slot: (Place.OTHER, slot) for slot in range(len(dump.page_ids) * page)}
    for index, number in enumerate(dump.page_table[row, : -(-context // page)].tolist()):
        for offset in range(page):
            position = index * page + offset
            places[number * page + offset] = (Place.KEY if position < context else Place.TAIL, position)
    return places


def hints(judge: Judge, verdict: Verdict, told: list[Keys]) -> Iterator[str]:
    """Sentences on what it looks like, from what is read wrongly; they may be wrong, unlike the figures."""
    dump, worst = verdict.dump, verdict.worst
    spec, context = dump.meta.spec, int(dump.context[worst.row])
    if judge.reused:
        yield "right on a new plan, wrong on one that was filled before: something of an earlier step stays in the plan"
    if any(one.place is Place.TAIL and one.seen for one in told):
        yield f"entries behind the row's last token, {context - 1}, have weight: the last page's tail is read"
    oldest = int(dump.positions[worst.token]) - spec.window + 1
    if spec.window and oldest > 0:
        for one in told:
            if one.place is Place.KEY and one.last == oldest - 1 and one.seen:
                yield f"key {one.last} is seen, and a window of {spec.window} begins at {oldest}: one too many"
            if one.place is Place.KEY and one.first == oldest and not one.seen:
                yield f"key {oldest} is not seen, and a window of {spec.window} begins there: one too few"
    unread = [one.name for one in told if one.place is Place.KEY and one.expected and not one.seen]
    if unread and not judge.reused:
        yield f"not read at all: {', '.join(unread)}"
    if (other := _other_kv_head(judge, verdict)) is not None:
        own = worst.head // (spec.q_heads // spec.kv_heads)
        yield f"head {worst.head} has what it would have with KV head {other} instead of {own}"


def _other_kv_head(judge: Judge, verdict: Verdict) -> int | None:
    """The KV head with which the reference gives what the worst head has."""
    dump, worst, spec = verdict.dump, verdict.worst, verdict.dump.meta.spec
    if dump.meta.layout.name != "nhd/1":
        return None
    own = worst.head // (spec.q_heads // spec.kv_heads)
    for other in (one for one in range(spec.kv_heads) if one != own):
        order = torch.arange(spec.kv_heads)
        order[own] = other
        planes = {name: of_heads(plane, order) for name, plane in dump.planes.items()}
        wanted = judge.reference.play(_stored(dump), planes=planes)
        if float(errors(verdict.out, wanted)[worst.token, worst.head]) <= judge.limit:
            return other
    return None


def _stored(dump: Dump) -> Dump:
    """The dump as if its own entries had been stored before; a dump's pages hold them."""
    return replace(dump, k=None, v=None)
