"""Few rows that hold every pair of values that can occur together. Knows no plugin.

Greedy: each row takes the most pairs that no row has yet. A pair that cannot occur is found by putting it, alone,
into the first row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, str]
Pair = frozenset[tuple[str, str]]
Legal = Callable[[Row], bool]


def covering(
    factors: Mapping[str, Sequence[str]], legal: Legal, most: int | None = None, done: Sequence[Row] = ()
) -> list[Row]:
    """At most `most` rows over all factors, the first of them every factor's first value, which must be legal.

    Values that are not legal in the first row are left out, and so are pairs. What `done` holds is not asked again.
    Pairs are bits of one number here: there are thousands of rows to choose from.
    """
    first = {name: values[0] for name, values in factors.items()}
    if most == 1 and not done:
        return [first]
    possible = {
        name: [value for value in values if value == values[0] or legal({**first, name: value})]
        for name, values in factors.items()
    }
    rows = [dict(zip(possible, values, strict=True)) for values in itertools.product(*possible.values())]
    bit: dict[Pair, int] = {}
    held = [(row, sum(bit.setdefault(pair, 1 << len(bit)) for pair in _pairs(row))) for row in rows]
    wanted = sum(bit.values()) & ~sum(bit[pair] for pair in set().union(*map(_pairs, done)) if pair in bit)
    chosen: list[Row] = []
    while wanted and held and len(chosen) != most:
        best, pairs = max(held, key=lambda one: (one[1] & wanted).bit_count())
        held.remove((best, pairs))
        if legal(best):
            chosen.append(best)
            wanted &= ~pairs
        elif culprit := _culprit(first, (pair for pair in _pairs(best) if bit[pair] & wanted), legal):
            wanted &= ~bit[culprit]
            held = [one for one in held if not one[1] & bit[culprit]]
        held = [one for one in held if one[1] & wanted]
    return chosen


def _pairs(row: Row) -> Iterable[Pair]:
    return map(frozenset, itertools.combinations(row.items(), 2))


def _culprit(first: Row, pairs: Iterable[Pair], legal: Legal) -> Pair | None:
    """The pair that spoils the first row, too; None if it takes more than two values."""
    return next((pair for pair in sorted(pairs, key=sorted) if not legal({**first, **dict(pair)})), None)
