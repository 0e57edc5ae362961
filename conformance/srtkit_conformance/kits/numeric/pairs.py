"""Few cases that hold every pair of values of two factors. Knows no factor."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

Pair = tuple[str, Any, str, Any]
"""Two factors in order, each with a value."""


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 1, never: Collection[Pair] = ()) -> list[dict[str, Any]]:
    """Cases that together hold every pair of values of two factors: few, and found greedily.

    Pairs of `never` are in none. Each factor needs a value that goes with all others.
    """
    names = list(factors)
    draw = random.Random(seed)
    pairs = [(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]]
    missing: dict[Pair, None] = dict.fromkeys(pair for pair in pairs if pair not in never)  # a set in order
    cases = []
    while missing:
        a, x, b, y = next(iter(missing))
        case = {a: x, b: y}
        for name in draw.sample(names, len(names)):
            if name not in case:
                allowed = [value for value in factors[name] if not _has(case | {name: value}, never)]
                gains = {value: _gain(case | {name: value}, name, names, missing) for value in allowed}
                case[name] = draw.choice([value for value, gain in gains.items() if gain == max(gains.values())])
        for one, other in itertools.combinations(names, 2):
            missing.pop((one, case[one], other, case[other]), None)
        cases.append(case)
    return cases


def _gain(case: Mapping[str, Any], name: str, names: Sequence[str], missing: Mapping[Pair, None]) -> int:
    """How many missing pairs a case holds by one of its values."""
    chosen = [one for one in names if one in case]
    at = chosen.index(name)
    before = sum((one, case[one], name, case[name]) in missing for one in chosen[:at])
    return before + sum((name, case[name], one, case[one]) in missing for one in chosen[at + 1 :])


def _has(case: Mapping[str, Any], never: Collection[Pair]) -> bool:
    return any(a in case and b in case and (case[a], case[b]) == (x, y) for a, x, b, y in never)
