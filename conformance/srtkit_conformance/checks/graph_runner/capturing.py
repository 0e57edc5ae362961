"""Capturing: in which order, what fails and how, what is freed. Runners without keys must refuse to capture."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from srtkit.spec.errors import OutOfMemory, SrtError, Unsupported
from srtkit.spec.graph_runner import Program
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.check import Failed, Informational, Outcome, Refused, check, expect
from srtkit_conformance.kits.graph_runner.harness import NOTHING, Harness, opened, refused
from srtkit_conformance.kits.graph_runner.program import Ledger
from srtkit_conformance.kits.graph_runner.steps import fills_for, random_fill
from srtkit_conformance.target import Target

TRIES = 3
SMALLEST_PIECE = 4096


def _named(error: SrtError, keys: Sequence[StepKey]) -> None:
    """The cause names one of the keys, by its rows and tokens."""
    numbers = set(re.findall(r"\d[\d,]*\d|\d", error.cause))
    named = any({str(key.rows), str(key.tokens)} <= numbers for key in keys)
    expect(named, "the error does not name the key", observed=error.cause, limit=keys[0] if len(keys) == 1 else "a key")


@check(
    "graph_runner.refuses_keys",
    level=1,
    clause="graph_runner/1.0: prepare captures keys, or raises Unsupported naming key and cause",
    explain="A runner that captures nothing must say so when it is asked to: the planner would pad steps for nothing.",
)
def refuses_keys(target: Target) -> Outcome:
    with opened(target) as harness:
        program = harness.program()
        harness.capture(program, ())
        if harness.keys:
            expect(not program.log, "preparing no keys has run the program", observed=program.log)
            return {}
        try:
            harness.capture(program, [StepKey(4, 4, 1)])
        except Unsupported as error:
            return Refused(error.cause)
    raise Failed("a runner that lists no keys takes one", limit="Unsupported")


@check(
    "graph_runner.largest_first",
    level=1,
    clause="graph_runner/1.0: prepare: capture keys, largest first",
    explain="Graphs share a pool: captured from the smallest up, each needs new memory instead of the larger one's.",
)
def largest_first(target: Target) -> Outcome:
    with opened(target) as harness:
        if not harness.keys:
            return NOTHING
        program = harness.program()
        harness.capture(program, sorted(harness.keys, key=lambda key: (key.tokens, key.rows)))
        seen = [key.tokens for call, key in program.log if call == "body"]
        expect(seen == sorted(seen, reverse=True), "captured in another order", observed=seen)
        captured = {key for call, key in program.log if call == "body"}
        expect(captured == set(harness.keys), "not every key was captured", observed=captured)
        return {"keys": len(captured)}


@check(
    "graph_runner.prepare_again",
    level=1,
    clause="graph_runner/1.0: prepare(program, keys) per program; keys are added",
    explain="The second prepare of a program, or that of another program, drops what was captured before.",
)
def prepare_again(target: Target) -> Outcome:
    rng = target.rng("fills")
    with opened(target) as harness:
        if not harness.keys:
            return NOTHING
        program = harness.program()
        first, rest = harness.keys[:1], harness.keys[1:]
        harness.capture(program, first)
        harness.capture(program, rest)
        harness.prepared()
        for key in harness.keys:
            program.fill = fills_for(key, rng)[0]
            harness.step(program, program.fill, "a key of several calls of prepare")
        return {}


class Breaks(Program):
    """Like `inner`, except that the body fails at one key."""

    def __init__(self, inner: Ledger, at: StepKey) -> None:
        self._inner, self._at = inner, at

    def before(self, key: StepKey) -> None:
        self._inner.before(key)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        outputs = self._inner.body(key)
        if key == self._at:
            raise KeyError("no such layer")
        return outputs

    def cuts(self) -> frozenset[str]:
        return self._inner.cuts()


@check(
    "graph_runner.failed_capture",
    level=1,
    clause="graph_runner/1.0: prepare raises OutOfMemory or Unsupported naming key and cause; the device stays usable",
    explain="The library's own error comes through, the message does not say which key, what was captured before the "
    "error stays in memory, or the stream is left in capture mode.",
)
def failed_capture(target: Target) -> Outcome:
    rng = target.rng("fills")
    with opened(target) as harness:
        if not harness.keys:
            return NOTHING
        good = harness.prepared()
        key = min(harness.keys, key=lambda key: (key.tokens, key.rows))
        inner = harness.program()
        free = harness.free()
        try:
            harness.runner.prepare(Breaks(inner, key), harness.keys)
        except (Unsupported, OutOfMemory) as error:
            _named(error, [key])
            expect("no such layer" in error.cause, "the error does not say why", observed=error.cause)
        except Exception as error:
            raise Failed("another error", observed=repr(error), limit="Unsupported or OutOfMemory") from error
        else:
            raise Failed("a body that fails was captured all the same")
        expect(harness.free() >= free, "a failed capture keeps memory", observed=harness.free(), limit=free)
        for program in (good, harness.prepared()):
            for one in harness.keys:
                harness.step(program, fills_for(one, rng)[0], "a step after a failed capture")
        return {}


@check(
    "graph_runner.pressure",
    level=1,
    clause="graph_runner/1.0: prepare raises OutOfMemory naming key and cause; the device stays usable",
    explain="Captured under memory pressure: what was captured before the error must be freed, and capture must work "
    "when there is memory again.",
)
def pressure(target: Target) -> Outcome:
    with opened(target) as harness:
        if not harness.keys:
            return NOTHING
        program = harness.program()
        for _ in range(2):  # the first time libraries may set up memory that they keep
            free = harness.free()
            harness.capture(program, harness.keys)
            enough = free - harness.free()
            harness.runner.close()
        if enough <= 0:
            return Informational("what it prepares takes no memory of the device")
        blockers = _filled(harness, enough * 3 // 4)
        free = harness.free()
        try:
            harness.capture(program, harness.keys)
        except (OutOfMemory, Unsupported) as error:
            _named(error, harness.keys)
        except Exception as error:
            raise Failed("another error", observed=repr(error), limit="OutOfMemory") from error
        else:
            raise Failed(
                "all keys were captured in three quarters of the memory that they need",
                observed=f"{free} of {enough} bytes",
            )
        expect(harness.free() >= free, "a failed capture keeps memory", observed=harness.free(), limit=free)
        refused(harness.runner, program, harness.keys[0], "a key of a failed prepare")
        blockers.clear()
        return _all_keys(harness, program)


def _filled(harness: Harness, left: int) -> list[Tensor]:
    """Takes memory until at most `left` bytes are free, in pieces as large as the device still gives."""
    taken: list[Tensor] = []
    size = harness.free()
    while (most := harness.free() - left) > 0 and size >= SMALLEST_PIECE:
        try:
            taken.append(harness.platform.allocate("workspace", (min(size, most),), torch.uint8))
        except OutOfMemory:
            size //= 2
    return taken


def _all_keys(harness: Harness, program: Ledger) -> Outcome:
    """Prepare and run every key."""
    rng = harness.target.rng("all keys")
    harness.capture(program, harness.keys)
    for key in harness.keys:
        harness.step(program, fills_for(key, rng)[0], "a step")
    return {}


@check(
    "graph_runner.close",
    level=1,
    clause="graph_runner/1.0: close: free graphs and their memory; prepare may be called again after close",
    explain="Sleep and weight updates close and prepare again. A graph that is kept holds memory, and addresses that "
    "are no longer valid.",
)
def close(target: Target) -> Outcome:
    with opened(target) as harness:
        if not harness.keys:
            harness.runner.close()
            return NOTHING
        program = harness.program()
        for _ in range(2):  # the first time libraries may set up memory that they keep
            free = harness.free()
            _all_keys(harness, program)
            harness.runner.close()
            harness.runner.close()
        expect(harness.free() >= free, "closing keeps memory", observed=harness.free(), limit=free)
        refused(harness.runner, program, harness.keys[0], "a key after close")
        program.change_weight(-program.reference.weight)
        return _all_keys(harness, program)


@check(
    "graph_runner.no_allocation",
    level=1,
    clause="graph_runner/1.0: run: a captured step allocates no device memory",
    explain="Outputs are cloned, or a buffer is made, in every run. Memory that the plan did not count runs out under "
    "load.",
)
def no_allocation(target: Target) -> Outcome:
    rng = target.rng("fills")
    with opened(target) as harness:
        if not harness.keys:
            return NOTHING
        program = harness.prepared()
        key = max(harness.keys, key=lambda key: key.tokens)
        n_query = fills_for(key, rng)[0].n_query
        falls = []
        for _ in range(TRIES):  # others may use the device, too
            free = harness.free()
            held = []
            for _ in range(4):
                program.fill = random_fill(rng, n_query)
                held.append(harness.runner.run(program, key))
            falls.append(free - harness.free())
            del held
        expect(min(falls) <= 0, "runs of a captured key take memory", observed=f"{min(falls)} bytes in 4 runs")
        return {"tries": TRIES}
