"""Recorded steps: the same calls on the same addresses, filled anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from srtkit_conformance.check import Outcome, check
from srtkit_conformance.kits.numeric.pool import CANARY
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import Row, Shape, Step, World
from srtkit_conformance.target import Target

CLAUSE = (
    "recurrent/1.0: what changes from step to step lives in the plan at fixed addresses; step, zero and fork record"
)
EXPLAIN = (
    "Lengths or slots of the first fill are baked into the recording; a tensor is made anew in fill; rows of a larger "
    "fill remain. On a device without graphs the calls are repeated as recorded."
)


class Recorded:
    """One step over static tensors, recorded where the device and the backend can. `first` is run once, unjudged."""

    def __init__(self, world: World, first: Step, *, graph: bool) -> None:
        self._world = world
        self._static = first
        self._guarded = first.guarded()
        self._replay: Callable[[], None] = self._work
        first.fill()
        self._work()  # kernels are chosen and compiled before a recording
        graphs = world.harness.platform.graphs()
        self.mode = "repeated"
        if graph and graphs is not None:
            self._replay = graphs.capture(graphs.new_pool(), self._work).replay
            self.mode = "graph"

    @torch.inference_mode()
    def _work(self) -> None:
        static = self._static
        self._world.backend.step(static.plan, self._world.layers[0], static.inputs, self._guarded.inner)

    def run(self, step: Step) -> None:
        """Bring a step to the static addresses, fill, replay, judge and move on."""
        static = self._static
        for name in ("cu_q", "context", "positions", "slots"):
            vars(static.batch)[name].copy_(vars(step.batch)[name])
        static.state_slots.copy_(step.state_slots)
        for name, values in static.inputs.items():
            values.copy_(step.inputs[name])
        static.batch = replace(static.batch, host_q=step.n_query, host_context=step.context, leading=step.batch.leading)
        static.fill()
        self._guarded.inner.fill_(CANARY)
        self._guarded.inner[step.tokens :] = torch.nan
        self._replay()
        step.judge(self._guarded)
        step.commit()


def _replayed(
    target: Target, level: Sequence[str], leading: int, steps: Sequence[tuple[Sequence[tuple[int, int]], Shape]]
) -> Outcome:
    """Record the first of `steps`, of sequences that end then; replay all. A step is (sequence, tokens) of each row."""
    harness = Harness(target)
    worst: dict[str, float] = {}
    mode = ""
    for case in harness.cases():
        world = World(harness, case)
        gone = [(world.admit(n), n) for _, n in steps[0][0]]
        recorded = Recorded(
            world, Step(world, [Row(*one) for one in gone], Shape(leading)), graph=harness.can.capture in level
        )
        for sequence, _ in gone:
            world.end(sequence)
        rows = [world.admit(80) for _ in gone]
        for work, shape in steps:
            recorded.run(Step(world, [Row(rows[number], n) for number, n in work], shape))
        mode = recorded.mode
        worst |= world.margins.figures()
        world.close()
    return {"mode": mode, **worst}


@check("recurrent.capture.one_token", level=1, clause=CLAUSE, explain=EXPLAIN, isolated=True)
def one_token(target: Target) -> Outcome:
    """Decode: rows in other slots, in another order, and fewer rows with padding."""
    three = [
        ([(0, 1), (1, 1), (2, 1)], Shape(3)),
        ([(2, 1), (0, 1), (1, 1)], Shape(3)),
        ([(1, 1)], Shape(1, (1, 1))),
        ([(1, 1), (2, 1), (0, 1)], Shape(3)),
    ]
    return _replayed(target, ("one_token", "uniform", "any"), 3, three)


@check("recurrent.capture.mixed", level=1, clause=CLAUSE, explain=EXPLAIN, isolated=True)
def mixed(target: Target) -> Outcome:
    """Rows of any length: the same number of rows and tokens, divided otherwise."""
    thirty = [
        ([(0, 1), (1, 9), (2, 20)], Shape(1)),
        ([(2, 1), (0, 25), (1, 4)], Shape(1)),
        ([(0, 1), (1, 1), (2, 28)], Shape(2)),
    ]
    return _replayed(target, ("any",), 1, thirty)
