"""Running steps: the result is the eager one, at every key, for every fill, however often."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.graph_runner import Program
from srtkit.spec.step_plan import StepKey
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.graph_runner.harness import opened, refused
from srtkit_conformance.kits.graph_runner.program import Outputs, compare
from srtkit_conformance.kits.graph_runner.steps import fills_for, random_fill
from srtkit_conformance.target import Target

ATTEMPTS = 5
STEPS = 150
LONG = 200
"""Operators of a step that a device cannot have done before the host has asked."""


@check(
    "graph_runner.equals_eager",
    level=1,
    clause="graph_runner/1.0: run: the result equals the eager one for every fill below the key",
    explain="A run at another key than the one given, or outputs of another graph. Each key is filled to its end "
    "first, then less, so what a larger fill left behind shows too.",
)
def equals_eager(target: Target) -> Figures:
    rng = target.rng("fills")
    with opened(target) as harness:
        program = harness.prepared()
        fills = [fill for key in harness.shapes() for fill in fills_for(key, rng)]
        worst = max(harness.step(program, fill, "a step") for fill in fills)
        return {"steps": len(fills), "largest_difference": worst}


@check(
    "graph_runner.new_inputs",
    level=1,
    clause="graph_runner/1.0: a program is a callable over buffers at fixed addresses",
    explain="The second run of a key gives what the first gave: values are baked into the graph, or a result is kept.",
)
def new_inputs(target: Target) -> None:
    rng = target.rng("fills")
    with opened(target) as harness:
        program = harness.prepared()
        for key in harness.shapes():
            n_query = fills_for(key, rng)[0].n_query
            for number in range(3):
                harness.step(program, random_fill(rng, n_query), f"run {number + 1}")


@check(
    "graph_runner.once",
    level=1,
    clause="graph_runner/1.0: run: run one step",
    explain="A body writes KV pages and state: run twice it writes twice. Runs before a capture must happen in "
    "prepare, where only padding rows are filled.",
)
def once(target: Target) -> None:
    rng = target.rng("fills")
    with opened(target) as harness:
        program = harness.prepared()
        found = program.state[1:].cpu()
        expect(not found.any(), "prepare has changed the state of rows that are no padding", observed=found.abs().max())
        for key in harness.shapes():
            harness.step(program, fills_for(key, rng)[0], "a step")
        gold = program.reference.state[1:]
        difference = float(np.abs(program.state[1:].cpu().numpy() - gold).max())
        expect(difference < 1e-3, "the state is not what one run of each step makes", observed=difference)


@check(
    "graph_runner.before",
    level=1,
    clause="graph_runner/1.0: before: called before every run and before capture",
    explain="Attention plans are filled there. Without it a step attends over the rows of the step before.",
)
def before(target: Target) -> None:
    rng = target.rng("fills")
    with opened(target) as harness:
        program = harness.prepared()
        bodies = [i for i, (call, _) in enumerate(program.log) if call == "body"]
        for i in bodies:
            calls = [key for call, key in program.log[:i] if call == "before"]
            ready = bool(calls) and calls[-1] == program.log[i][1]
            expect(ready, "a key was captured without before", observed=program.log[i][1])
        for key in harness.shapes():
            for _ in range(2):
                program.log.clear()
                program.fill = fills_for(key, rng)[0]
                outputs = harness.runner.run(program, key)
                compare(outputs, program.reference.run(program.fill), f"before came too late: {key}")
                calls = [one for call, one in program.log if call == "before"]
                expect(calls == [key], "before is not called once, with the key", observed=program.log)
                expect(program.log[0][0] == "before", "before is not called first", observed=program.log)


@check(
    "graph_runner.outputs_live",
    level=1,
    clause="graph_runner/1.0: outputs of a run stay valid for depth further runs",
    explain="The outputs are the graph's own memory, which the next run overwrites while a step in flight still needs "
    "them: keep depth + 1 copies.",
)
def outputs_live(target: Target) -> Figures:
    rng = target.rng("fills")
    for depth in (1, 3):
        with opened(target, depth) as harness:
            program = harness.prepared()
            for key in harness.shapes():
                held = []
                for _ in range(2 * depth + 3):
                    program.fill = random_fill(rng, fills_for(key, rng)[0].n_query)
                    gold = program.reference.run(program.fill)
                    held.append((harness.runner.run(program, key), gold))
                    outputs, gold = held[max(0, len(held) - 1 - depth)]
                    compare(outputs, gold, f"outputs {min(depth, len(held) - 1)} runs old at {key}, depth {depth}")
    return {"depth": 3}


@check(
    "graph_runner.programs_apart",
    level=1,
    clause="graph_runner/1.0: a runner executes programs: target, draft, encoder; each has buffers of its own",
    explain="Graphs are kept by key alone, so the draft's step replays the target's.",
)
def programs_apart(target: Target) -> None:
    rng = target.rng("fills")
    with opened(target) as harness:
        programs = [harness.prepared(), harness.prepared()]
        for key in harness.shapes():
            for _ in range(2):
                for number, program in enumerate(programs):
                    harness.step(program, fills_for(key, rng)[0], f"program {number + 1} of 2")


@check(
    "graph_runner.unknown_key",
    level=1,
    clause="graph_runner/1.0: run: Unsupported for a key that was not prepared, except from one that captures nothing",
    explain="The planner counts on the key: all ranks run the same one. A silent eager run, or another key, hides that "
    "the ranks disagree.",
)
def unknown_key(target: Target) -> Figures:
    rng = target.rng("fills")
    with opened(target) as harness:
        program, other = harness.prepared(), harness.program()
        if not harness.keys:
            for key in (StepKey(5, 5, 1), StepKey(2, 9)):
                harness.step(other, fills_for(key, rng)[0], "any shape")
            return {"refused": 0}
        strangers = [key for key in (StepKey(3, 3, 1), StepKey(2, 9), StepKey(1, 32)) if key not in harness.keys]
        for key in strangers:
            program.fill = fills_for(key, rng)[0]
            refused(harness.runner, program, key, "a key that was not captured")
        key = harness.keys[0]
        other.fill = fills_for(key, rng)[0]
        refused(harness.runner, other, key, "a program that was not prepared")
        harness.step(program, fills_for(key, rng)[0], "a step after a refusal")
        return {"refused": len(strangers) + 1}


class Dice(Program):
    """A body that draws random numbers."""

    def __init__(self, seat: Tensor) -> None:
        self._seat = seat

    def before(self, key: StepKey) -> None:
        """Nothing to fill."""

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        return {"drawn": torch.rand_like(self._seat)}

    def cuts(self) -> frozenset[str]:
        return frozenset()


@check(
    "graph_runner.random",
    level=1,
    clause="graph_runner/1.0: run: the result equals the eager one; random numbers go on from run to run",
    explain="The generator's state is part of the capture, or is set back by every run: each step draws the same.",
)
def random(target: Target) -> None:
    with opened(target) as harness:
        dice = Dice(harness.platform.allocate("workspace", (64,), torch.float32))
        key = harness.shapes()[0]
        harness.runner.prepare(dice, [key] if harness.keys else [])
        drawn = [harness.runner.run(dice, key)["drawn"].cpu().clone() for _ in range(3)]
        differ = all(not torch.equal(drawn[i], drawn[j]) for i, j in ((0, 1), (1, 2), (0, 2)))
        expect(differ, "two runs draw the same random numbers", observed=[one[:3].tolist() for one in drawn])


@check(
    "graph_runner.no_wait",
    level=1,
    clause="graph_runner/1.0: run: the host does not wait for a captured step",
    explain="A synchronisation, or a copy to the host, in run: the next step cannot be planned while this one runs.",
)
def no_wait(target: Target) -> Outcome:
    if not target.facts.async_launch:
        return Informational("launching waits on this platform, whatever the runner does")
    with opened(target) as harness:
        program, key = harness.program(LONG), harness.shapes()[0]
        harness.capture(program, harness.keys[:1])
        for _ in range(ATTEMPTS):
            program.fill = None
            harness.runner.run(program, key)
            done = harness.platform.new_event()
            done.record()
            if not done.query():
                harness.platform.current_stream().synchronize()
                return {"operators": LONG}
        expect(False, "the step is over when run returns, every time", observed=ATTEMPTS, limit="it is still running")
    return None


@check(
    "graph_runner.traffic",
    level=2,
    clause="graph_runner/1.0: run: the result equals the eager one for every fill below the key",
    explain="Something that comes with time: a counter, a cache of graphs, a ring. Two programs, all keys, random "
    "fills, two steps in flight.",
)
def traffic(target: Target) -> Figures:
    rng = target.rng("traffic")
    worst, steps = 0.0, 0
    with opened(target, depth=2) as harness:
        programs = [harness.prepared(), harness.prepared()]
        held: deque[tuple[Mapping[str, Tensor], Outputs]] = deque()
        while steps < STEPS:
            program, key = programs[rng.integers(2)], harness.shapes()[rng.integers(len(harness.shapes()))]
            fills = fills_for(key, rng)
            program.fill = fills[rng.integers(len(fills))]
            at = harness.fit(program.fill.wanted())
            if at is None:
                continue
            held.append((harness.runner.run(program, at), program.reference.run(program.fill)))
            steps += 1
            if len(held) > 2:
                worst = max(worst, compare(*held.popleft(), f"step {steps - 2}"))
    return {"steps": steps, "largest_difference": worst}
