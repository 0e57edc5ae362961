"""States moved about: zeroed, forked, snapshot, and taken back to where a verify step accepted."""

from __future__ import annotations

import torch

from srtkit_conformance.check import Outcome, Refused, check, expect
from srtkit_conformance.kits.numeric.refusals import refusal, together
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.recurrent.world import Row, Shape, Step, World, each
from srtkit_conformance.target import Target


@check(
    "recurrent.states.zero",
    level=1,
    clause="recurrent/1.0: zero the states, both planes, whatever stands there",
    explain="NaN of a failed step survives a multiplication by 0; or only one of the planes is zeroed.",
)
def zero(target: Target) -> Outcome:
    """Slots that are full of NaN, or of an earlier sequence's state, several in one call."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        rows = [world.admit(30, dirty=dirty) for dirty in (False, True, False)]
        world.run(*[(row, 9) for row in rows])
        world.zero([rows[0].slot, rows[2].slot])
        for row in (rows[0], rows[2]):
            row.done = 0
        world.run(*[(row, 11) for row in rows])

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.states.fork",
    level=1,
    clause="recurrent/1.0: fork copies states, both planes, between slots",
    explain="Only the state is copied and not the convolution's; pairs are mixed up; or both go on in one slot.",
)
def fork(target: Target) -> Outcome:
    """Two sequences and a fork of each, which go on differently."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        rows = [world.admit(30) for _ in range(2)]
        world.run((rows[0], 8), (rows[1], 3))
        rows += world.fork(rows)
        world.run(*[(row, 1) for row in rows], leading=4)
        world.run(*[(row, n) for row, n in zip(rows, (5, 1, 9, 2), strict=True)])

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.states.snapshots",
    level=1,
    clause="recurrent/1.0: a snapshot at a row's last token is taken by every backend",
    explain="Snapshots are ignored, go to another row's target, or leave out the convolution's state.",
)
def snapshots(target: Target) -> Outcome:
    """Snapshots at the ends of decode and prompt rows, and sequences that go on from them."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b, c = (world.admit(60) for _ in range(3))
        slots = [world.take_slot() for _ in range(4)]
        world.step([Row(a, 20, ((20, slots[0]),)), Row(b, 7), Row(c, 33, ((33, slots[1]),))])
        branches = [a.branch(20, world.rng, slots[0]), c.branch(33, world.rng, slots[1])]
        world.step([Row(b, 1, ((1, slots[2]),)), Row(a, 1), Row(c, 1, ((1, slots[3]),))], Shape(leading=3))
        branches += [b.branch(8, world.rng, slots[2]), c.branch(34, world.rng, slots[3])]
        world.run(*[(row, 2) for row in (a, b, c, *branches)])

    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.states.inner_snapshots",
    level=1,
    clause="recurrent/1.0: inner_snapshots: the state after `offset` tokens of `row` is copied into `target` slot",
    explain="The snapshot is the chunk's or the row's end; the convolution's state is that of the end.",
)
def inner_snapshots(target: Target) -> Outcome:
    """Inside rows at several offsets, below the width of the convolution and across usual chunk sizes."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b = world.admit(170), world.admit(40)
        offsets = [1, 2, 64, 100, 150]
        slots = [world.take_slot() for _ in (*offsets, b)]
        rows = [Row(a, 150, tuple(zip(offsets, slots, strict=False))), Row(b, 20, ((11, slots[-1]),))]
        world.step(rows)
        branches = [a.branch(offset, world.rng, slot) for offset, slot in zip(offsets, slots, strict=False)]
        branches.append(b.branch(11, world.rng, slots[-1]))
        world.run(*[(row, 1) for row in (a, b, *branches)], leading=8)
        world.run(*[(row, 2) for row in branches])

    def attempt() -> None:
        each(harness, harness.cases(), scenario)

    if not harness.can.inner_snapshots:
        return refusal(attempt, "snapshots inside a row")
    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.states.accept",
    level=1,
    clause="recurrent/1.0: accept makes the kept state after n_accepted tokens current; 0 leaves a row as it is",
    explain="Off by one against the tokens of the step; the convolution keeps the rejected ones; rows that verify "
    "nothing are set back, too.",
)
def accept(target: Target) -> Outcome:
    """Verify rows of which one to all tokens are accepted, beside a prompt and padding, twice."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        k = 4
        rows = [world.admit(60) for _ in range(k)]
        world.run(*[(row, 3 + 2 * number) for number, row in enumerate(rows)])
        prompt = world.admit(60)
        for turn in range(2):
            accepted = [1 + (number + turn) % k for number in range(k)]
            step = Step(world, [*(Row(row, k) for row in rows), Row(prompt, 9)], Shape(k, (1,), keep=k))
            step.fill()
            step.run()
            with torch.inference_mode():
                world.backend.accept(step.plan, world.layers[0], world.int32([*accepted, 0, 0]))
            for row, n in zip(rows, accepted, strict=True):
                row.done += n
            prompt.done += 9
        world.run(*[(row, 1) for row in (*rows, prompt)], leading=k + 1)

    def without_fill() -> None:
        world = World(harness, harness.case())
        step = Step(world, [Row(world.admit(9), 4)], Shape(leading=1))
        step.fill()
        step.run()
        world.backend.accept(step.plan, world.layers[0], world.int32([2]))
        step.rows[0].sequence.done = 2
        world.run((step.rows[0].sequence, 1))

    def attempt() -> None:
        each(harness, harness.cases(), scenario)

    if not harness.can.keep:
        asked = [refusal(attempt, "kept states"), refusal(without_fill, "accept")]
        refused = [one.reason for one in asked if isinstance(one, Refused)]
        return Refused("; ".join(refused)) if len(refused) == len(asked) else together(asked)
    return each(harness, harness.cases(), scenario)


@check(
    "recurrent.states.apart",
    level=1,
    clause="recurrent/1.0: step mutates the planes at the rows' slots and snapshot targets; fork and zero theirs",
    explain="A neighbour's slot is written: an index off by one, a whole plane copied back, padding at slot -1.",
)
def apart(target: Target) -> Outcome:
    """Every byte of every other slot is as it was."""
    harness = Harness(target)

    def scenario(world: World) -> None:
        a, b, idle = (world.admit(40) for _ in range(3))
        world.run((a, 7), (b, 5), (idle, 3))
        slots = [world.take_slot(), world.take_slot()]
        before = world.content()
        world.step([Row(a, 4, ((4, slots[0]),)), Row(b, 1)], Shape(padding=(1, 2)))
        (branch,) = world.fork([a])
        world.zero([slots[1]])
        after = world.content()
        written = {0, a.slot, b.slot, *slots, branch.slot}
        for name, plane in before.items():
            others = [slot for slot in range(len(plane)) if slot not in written]
            changed = [slot for slot in others if not torch.equal(plane[slot], after[name][slot])]
            expect(not changed, f"{world.case}: slots of plane {name} that no row has were written", observed=changed)
        world.run((idle, 2))

    return each(harness, harness.cases(), scenario)
