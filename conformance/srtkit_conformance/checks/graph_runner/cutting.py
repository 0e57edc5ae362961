"""Operators that a program marks: at which a step may be split, and gates, at which it must be."""

from __future__ import annotations

from srtkit.spec.errors import Unsupported
from srtkit_conformance.check import Failed, Outcome, Refused, check, expect
from srtkit_conformance.kits.graph_runner.harness import Harness, opened
from srtkit_conformance.kits.graph_runner.program import Ledger
from srtkit_conformance.kits.graph_runner.steps import fills_for
from srtkit_conformance.target import Target

MARKS = 3
DECISIONS = (1.0, -2.0, 0.5)


def _decided(target: Target, harness: Harness, program: Ledger) -> int:
    """Run every shape under several decisions of the host: each mark is called once a run. The number of runs."""
    rng, runs = target.rng("fills"), 0
    for factor in DECISIONS:
        program.decide(factor)
        for key in harness.shapes():
            for fill in fills_for(key, rng):
                before = program.calls
                harness.step(program, fill, f"a step in which the host decided {factor}")
                calls = program.calls - before
                expect(calls in (0, MARKS), "not every mark is called once a run", observed=calls, limit=MARKS)
                runs += calls > 0
    return runs


@check(
    "graph_runner.cuts",
    level=1,
    clause="graph_runner/1.0: cuts: the operators of Program.cuts run outside its graphs, on what these compute",
    explain="A marked operator is part of a graph, is called twice or never, with tensors that a later graph has "
    "overwritten, or the graph after it does not see what it wrote. A runner that replays a step and does not cut has "
    "recorded it.",
)
def cuts(target: Target) -> Outcome:
    declared = target.descriptor.capabilities(target.facts).cuts
    with opened(target) as harness:
        program = harness.program(marks=MARKS)
        harness.capture(program, harness.keys)
        if declared or not harness.keys:
            return {"runs": _decided(target, harness, program)}
        rng = target.rng("fills")
        for key in harness.keys:
            calls, bodies = program.calls, program.log.count(("body", key))
            harness.step(program, fills_for(key, rng)[0], "a step with marks inside its graph")
            replayed = program.log.count(("body", key)) == bodies
            called = program.calls - calls
            expect(not (replayed and called), "marks are called in a replayed step though cuts is no", observed=called)
        return Refused(declared.reason)


@check(
    "graph_runner.gates",
    level=1,
    clause="graph_runner/1.0: gates: no graph holds an operator at which the host decides; no: refuse such a program",
    explain="What the host decided while the step was captured is baked into the graph. A runner that cannot end a "
    "graph there must refuse the program before any step.",
)
def gates(target: Target) -> Outcome:
    can = target.descriptor.capabilities(target.facts).gates
    with opened(target) as harness:
        program = harness.program(marks=MARKS, gate=True)
        if can:
            harness.capture(program, harness.keys)
            return {"runs": _decided(target, harness, program)}
        try:
            harness.capture(program, harness.keys)
        except Unsupported as error:
            return Refused(error.cause)
    raise Failed("it declares gates as a no, and captures a program with gates", limit="Unsupported")
