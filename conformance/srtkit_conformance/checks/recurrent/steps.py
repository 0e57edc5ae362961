"""Kinds of steps, which are data: one result whatever the batch around a row, its order, its chunks and its slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import strategies as st

from srtkit_conformance.check import Outcome, check
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import Row, Shape, Step, World, each
from srtkit_conformance.target import Target

EXAMPLES = 15
SHRINKS = 25


@check(
    "recurrent.steps.mixed",
    level=1,
    clause="recurrent/1.0: the rows of one step: the first `leading` have q_len tokens each, the rest any number",
    explain="Row bounds come from a decode step's shape, or prefill rows overwrite what decode rows wrote.",
)
def mixed(target: Target) -> Outcome:
    """Decode rows, a prompt, a chunk and a row without tokens in one step; then all decode."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b, c, d = (world.admit(n) for n in (20, 40, 30, 60))
        world.run((a, 13), (c, 5))
        world.run((a, 1), (c, 1), (b, 31), (d, 9), leading=2)
        world.run((a, 1), (b, 1), (c, 0), (d, 45), leading=2)
        world.run((d, 1), (c, 1), (b, 1), (a, 1), leading=4)

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.chunks",
    level=1,
    clause="recurrent/1.0: a row's first token meets what stands in its slot; a prompt in chunks gives the prompt",
    explain="A chunk starts from zeros, or its convolution does; pieces shorter than the convolution lose history.",
)
def chunks(target: Target) -> Outcome:
    """One prompt whole, and in pieces down to a single token."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        whole = world.admit(90)
        world.run((whole, 90))
        for pieces in ((64, 26), (1, 1, 2, 1, 3, 82), (30, 2, 1, 33, 24)):
            again = world.again(whole)
            for n in pieces:
                world.run((again, n))

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.one_token",
    level=1,
    clause="recurrent/1.0: the kind of a step is data; a row of one token gives the same as leading or rest",
    explain="The decode kernel and the prefill kernel differ: rounding of the state, the order of decay and update.",
)
def one_token(target: Target) -> Outcome:
    """Rows of one token that lead, and that do not, in turn."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        rows = [world.admit(40) for _ in range(3)]
        world.run(*[(row, 17) for row in rows])
        for leading in (3, 0, 1, 0, 3):
            world.run(*[(row, 1) for row in rows], leading=leading)

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.slots",
    level=1,
    clause="recurrent/1.0: state_slots int32 [R] say where states stand; batch.slots are row slots",
    explain="A row's index or its row slot is taken for its state slot.",
)
def slots(target: Target) -> Outcome:
    """Rows in another order each step; sequences end, and others begin in their slots."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        rows = [world.admit(30) for _ in range(4)]
        world.run(*[(row, 7) for row in rows])
        world.run(*[(row, 1) for row in rows[::-1]], leading=4)
        world.end(rows.pop(1))
        world.run(*[(row, 3) for row in rows[1:]])
        rows += [world.admit(30), world.admit(30)]
        world.run(*[(row, 2) for row in rows[::-1]])

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.padding",
    level=1,
    clause="recurrent/1.0: padding rows have state slot 0; padding tokens step no state and their out is finite",
    explain="Padding is computed as if it were a row, and slot 0 grows without bound; or it is added to the last row.",
)
def padding(target: Target) -> Outcome:
    """Padding after decode rows and after mixed ones, with all surplus tokens on its last row."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b = world.admit(40), world.admit(60)
        world.run((a, 10), (b, 33), padding=(1, 20))
        for _ in range(6):
            world.run((a, 1), (b, 1), leading=2, padding=(1, 1, 1))
        world.run((a, 1), (b, 9), leading=1, padding=(1, 1, 22))
        world.run((b, 1), (a, 1), leading=2)

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.refill",
    level=1,
    clause="recurrent/1.0: fill prepares one step; nothing of the fill before remains",
    explain="Rows, lengths or snapshots of a larger fill before are left in the plan's buffers.",
)
def refill(target: Target) -> Outcome:
    """One plan: a large step with snapshots, a small one, and one of as many rows but other lengths."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        rows = [world.admit(80) for _ in range(4)]
        target_slot = world.take_slot()
        world.step([Row(rows[0], 40, ((40, target_slot),)), Row(rows[1], 20), Row(rows[2], 1), Row(rows[3], 9)])
        branch = rows[0].branch(40, world.rng, target_slot)
        world.run((rows[3], 2))
        world.run((rows[2], 3), (branch, 1), (rows[1], 20), (rows[0], 1))
        world.run((branch, 1), (rows[2], 1), leading=2)

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.two_plans",
    level=1,
    clause="recurrent/1.0: the backend holds no state of a step",
    explain="Lengths or slots kept in the backend: the plan filled last wins.",
)
def two_plans(target: Target) -> Outcome:
    """Two plans filled, then stepped in the order of filling."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b, c = (world.admit(50) for _ in range(3))
        world.run((a, 9), (b, 9), (c, 9))
        second = world.new_plan()
        steps = [
            Step(world, [Row(a, 1), Row(b, 12)], Shape(leading=1)),
            Step(world, [Row(c, 5)], Shape(), plan=second),
        ]
        for step in steps:
            step.fill()
        for step in steps:
            step.run()
            step.commit()
        second.close()
        world.run((c, 1), (b, 1), (a, 1), leading=3)

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.steps.layers",
    level=1,
    clause="recurrent/1.0: one fill serves every layer; planes and weights are the layer's",
    explain="Weights or addresses of the first layer are kept for all.",
)
def layers(target: Target) -> Outcome:
    """Two layers with weights and states of their own on one plan."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b = world.admit(40), world.admit(40)
        for work, leading in (([(a, 12), (b, 5)], 0), ([(b, 1), (a, 1)], 2), ([(a, 1), (b, 20)], 1)):
            step = Step(world, [Row(*one) for one in work], Shape(leading))
            step.fill()
            for layer in (0, 1):
                step.run(layer)
            step.commit()

    return each(harness, harness.cases(), scenario, layers=2)


@check(
    "recurrent.steps.lifecycle",
    level=1,
    clause="recurrent/1.0: close frees a plan's buffers; a backend can be built anew after close",
    explain="close frees what another plan or backend uses, or new_plan works once only.",
)
def lifecycle(target: Target) -> Outcome:
    """Close a plan and go on with another; close the backend and build it again."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        sequence = world.admit(30)
        world.run((sequence, 11))
        world.plan.close()
        world.plan = world.new_plan()
        world.run((sequence, 1))

    cases = harness.cases()
    return each(harness, [*cases, *cases], scenario)


@check(
    "recurrent.steps.any",
    level=2,
    clause="recurrent/1.0: core plans where states are zeroed, forked and snapshot; a backend computes",
    explain="A combination that the directed checks do not hold; the message names the smallest found.",
    seconds=300,
)
def any_step(target: Target) -> Outcome:
    """Random lives of sequences: steps of any shape, forks, snapshots, ends; shrunk to the shortest that fails."""
    harness = Harness(target)
    inner = bool(harness.can.inner_snapshots)
    lengths = st.sampled_from([0, 1, 1, 1, 2, 3, 5, 17, 66])
    move = st.one_of(
        st.tuples(st.just("step"), st.lists(lengths, min_size=1, max_size=5), st.integers(0, 2)),
        st.tuples(st.just("snapshot"), st.integers(0, 4), st.integers(1, 20), st.integers(1, 20)),
        st.tuples(st.just("fork"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 4)),
    )

    @hypothesis.seed(target.seed)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(hypothesis.Phase.generate, *([] if target.mutant else [hypothesis.Phase.shrink])),
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @hypothesis.given(kind=st.sampled_from(harness.kinds), moves=st.lists(move, min_size=2, max_size=8))
    def one(kind: str, moves: list[tuple[Any, ...]]) -> None:
        tried = repr((kind, moves))
        if lives.shrunk_enough(tried):
            return
        try:
            _Life(World(harness, harness.case(kind)), inner).live(moves)
        except Exception:
            lives.failed.add(tried)
            raise

    lives = _Lives()
    one()
    return None


@dataclass
class _Lives:
    """Ends the search for a shorter failure after some tries: each costs as much as a short check."""

    tried: int = 0
    failed: set[str] = field(default_factory=set)

    def shrunk_enough(self, tried: str) -> bool:
        """Whether to leave it at the failures found; those fail again."""
        self.tried += 1
        return self.tried > EXAMPLES + SHRINKS and tried not in self.failed


class _Life:
    """Up to five sequences of a world; every move is legal."""

    def __init__(self, world: World, inner: bool) -> None:
        self.world = world
        self.inner = inner
        self.rows = [world.admit(600) for _ in range(2)]
        self.moves: dict[str, Callable[..., None]] = {
            "step": self.step,
            "snapshot": self.snapshot,
            "fork": self.fork,
            "end": self.end,
        }

    def live(self, moves: list[tuple[Any, ...]]) -> None:
        """One move after the other."""
        for name, *arguments in moves:
            self.moves[name](*arguments)
        self.world.close()

    def step(self, lengths: list[int], padding: int) -> None:
        """The first sequences by these numbers of tokens; new ones where there are fewer."""
        while len(self.rows) < len(lengths):
            self.rows.append(self.world.admit(600))
        leading = next((i for i, n in enumerate(lengths) if n != 1), len(lengths))
        work = list(zip(self.rows, lengths, strict=False))
        self.world.run(*work, leading=leading, padding=(1,) * padding)
        self.rows = self.rows[1:] + self.rows[:1]

    def snapshot(self, number: int, n: int, offset: int) -> None:
        """A step of one sequence that leaves a snapshot, which goes on as another one."""
        if len(self.rows) > 4:
            return
        row = self.rows[number % len(self.rows)]
        offset = min(offset, n) if self.inner else n
        at, slot = row.done + offset, self.world.take_slot()
        self.world.step([Row(row, n, ((offset, slot),))])
        self.rows.append(row.branch(at, self.world.rng, slot))

    def fork(self, number: int) -> None:
        """A copy goes on as another sequence."""
        if len(self.rows) <= 4:
            self.rows += self.world.fork([self.rows[number % len(self.rows)]])

    def end(self, number: int) -> None:
        """One ends; one is always left."""
        if len(self.rows) > 1:
            self.world.end(self.rows.pop(number % len(self.rows)))
