"""What a runner's descriptor says: keys for limits and a level, the key for a step, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import CaptureLevel, GraphRunnerDescriptor
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.graph_runner.steps import LIMITS
from srtkit_conformance.target import Target

SIZES = tuple(
    replace(LIMITS, max_rows=rows, max_tokens=tokens) for rows, tokens in ((1, 1), (1, 8), (7, 7), (8, 32), (100, 8192))
)
LEVELS: tuple[CaptureLevel, ...] = ("never", "one_token", "uniform", "any")


def _keys(target: Target, limits: Limits, level: CaptureLevel) -> Sequence[StepKey]:
    keys: Sequence[StepKey] = target.descriptor.keys(limits, level, target.options)
    return keys


@check(
    "graph_runner.no_torch",
    level=0,
    clause="graph_runner/1.0: keys, fit and memory are pure and torch-free",
    explain="The planner asks them in a process that has no torch.",
)
def no_torch(target: Target) -> Outcome:
    if not can_travel(target.descriptor, target.options):
        return Informational("its functions cannot be imported by name, so a new process cannot call them")
    found = imported_by(plan_once, target.descriptor, target.options)
    expect(not found, "keys, fit or memory import torch")
    return None


def plan_once(descriptor: GraphRunnerDescriptor, options: object) -> None:
    """One of every call, in a new process."""
    keys = descriptor.keys(LIMITS, "any", options)  # type: ignore[arg-type]
    descriptor.fit(StepKey(1, 1, 1), keys)
    descriptor.memory(keys, 1000, 100)


@check(
    "graph_runner.keys",
    level=0,
    clause="graph_runner/1.0: keys(limits, level, options): what would be captured",
    explain="A key is larger than the largest step and a padding row, twice in the list, or no shape: every row of a "
    "decode step has a token, and a step has some.",
)
def keys(target: Target) -> Figures:
    count = 0
    for limits in SIZES:
        for level in LEVELS:
            found = _keys(target, limits, level)
            expect(list(found) == list(_keys(target, limits, level)), "two calls list different keys", observed=found)
            expect(len(set(found)) == len(found), "a key is listed twice", observed=found)
            for key in found:
                most = limits.max_rows + (key.q_len == 0)
                sane = 1 <= key.rows <= most and 1 <= key.tokens <= limits.max_tokens
                expect(sane, "a key is no step of these limits", observed=key, limit=limits)
                uniform = key.q_len == 0 or key.tokens == key.rows * key.q_len
                expect(uniform, "rows of q_len tokens each make another number of tokens", observed=key)
            count = max(count, len(found))
    return {"most_keys": count}


@check(
    "graph_runner.levels",
    level=0,
    clause="graph_runner/1.0: nothing at never, rows of one token at one_token, rows of equal length at uniform",
    explain="The level is what the attention backends of the model can record. A larger step captured all the same "
    "bakes its lengths into the graph.",
)
def levels(target: Target) -> Outcome:
    said = target.descriptor.capabilities(target.facts).levels
    expect(bool(said) and said <= set(LEVELS), "the declared levels are none of the contract's", observed=said)
    for limits in SIZES:
        never, one, uniform = (_keys(target, limits, level) for level in LEVELS[:3])
        expect(not never, 'keys at "never"', observed=never)
        expect(all(key.q_len == 1 for key in one), 'a key of more than one token a row at "one_token"', observed=one)
        expect(all(key.q_len for key in uniform), 'a mixed key at "uniform"', observed=uniform)
    return None


def _steps(limits: Limits) -> Iterator[StepKey]:
    for rows in range(1, limits.max_rows + 1):
        yield StepKey(rows, rows, 1)
        for tokens in range(rows, limits.max_tokens + 1):
            yield StepKey(rows, tokens)


@check(
    "graph_runner.fit",
    level=0,
    clause="graph_runner/1.0: fit(wanted, keys): the captured key that serves wanted, or None; same q_len and flags, "
    "and room: padding rows have q_len tokens each, in a mixed step the last has all that are over",
    explain="The planner trusts it: a key without room overwrites or loses rows, one of another q_len attends wrongly. "
    "All ranks ask with the same arguments and must get the same key.",
)
def fit(target: Target) -> Figures:
    descriptor: GraphRunnerDescriptor = target.descriptor
    captured = _keys(target, LIMITS, "any")
    served = 0
    for wanted in _steps(LIMITS):
        key = descriptor.fit(wanted, captured)
        expect(key == descriptor.fit(wanted, tuple(captured)), "two calls give different keys", observed=wanted)
        if key is None:
            expect(wanted not in captured, "a captured key does not serve its own shape", observed=wanted)
            continue
        served += 1
        expect(key in captured or (not captured and key == wanted), "the key is not captured", observed=key)
        rows, tokens = key.rows - wanted.rows, key.tokens - wanted.tokens
        expect((key.q_len, key.flags) == (wanted.q_len, wanted.flags), "the key is of another kind", observed=key)
        room = rows >= 0 and (tokens == rows * key.q_len if key.q_len else tokens >= 0 and (rows > 0 or tokens == 0))
        expect(room, f"{key} has no room for {wanted}", observed=(rows, tokens))
    flagged = descriptor.fit(StepKey(1, 1, 1, flags=1), captured)
    expect(flagged is None or flagged.flags == 1, "a step with flags gets a key without", observed=flagged)
    return {"served": served, "keys": len(captured)}


@check(
    "graph_runner.memory",
    level=0,
    clause="graph_runner/1.0: memory(keys, row_bytes, token_bytes): estimate in bytes",
    explain="More keys, or more bytes a row or token, cannot need less memory; no keys need nothing of these.",
)
def memory(target: Target) -> Figures:
    captured = _keys(target, LIMITS, "any")
    for order in (captured, captured[::-1]):
        said = [target.descriptor.memory(order[:n], 1000, 100) for n in range(len(order) + 1)]
        expect(all(isinstance(one, int) and one >= 0 for one in said), "no number of bytes", observed=said)
        expect(said == sorted(said), "more keys need less memory", observed=said)
    for wider in ((4000, 100), (1000, 400)):
        wide = target.descriptor.memory(captured, *wider)
        expect(wide >= said[-1], "wider rows or tokens need less memory", observed=wide, limit=said[-1])
        none = target.descriptor.memory((), *wider)
        expect(none == said[0], "no keys, and yet it depends on their sizes", observed=none, limit=said[0])
    return {"bytes": said[-1]}
