"""Sequences in state slots: core's side of the contract, as small as it can be. Judges outputs by the gates.

A slot that nobody holds is NaN, one that is given out anew holds what its last owner left, slot 0 is finite. States
are looked at through outputs alone, so that planes may have any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.recurrent import RecurrentLayer, RecurrentPlan, Snapshots
from srtkit_conformance.check import Outcome
from srtkit_conformance.kits.numeric import pool
from srtkit_conformance.kits.numeric.gates import Margins, finite
from srtkit_conformance.kits.numeric.refusals import refusal
from srtkit_conformance.kits.recurrent.case import Case
from srtkit_conformance.kits.recurrent.content import Stream, draw_tokens, draw_weights, truth_of
from srtkit_conformance.kits.recurrent.harness import Harness
from srtkit_conformance.kits.threads import one_thread

SLOTS = 12
GARBAGE = 3.0
"""What an earlier owner leaves in a slot: as large as states are, so that it cannot be told from one."""
LIMITS = Limits(max_rows=SLOTS, max_tokens=512, max_context=1024, page_size=16)


@dataclass(frozen=True)
class Row:
    """`n` tokens of a sequence. `snapshots`: (offset, target slot)."""

    sequence: Stream
    n: int
    snapshots: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Shape:
    """How a step is put to the backend. `padding`: tokens of each padding row; `fused`: inputs are slices."""

    leading: int = 0
    padding: tuple[int, ...] = ()
    keep: int = 0
    fused: bool = False


class World:
    """A backend, its layers' slots, and the sequences in them."""

    def __init__(self, harness: Harness, case: Case, *, layers: int = 1) -> None:
        self.harness = harness
        self.case = case
        self.rng = harness.target.rng(str(case))
        self.margins = Margins()
        self.backend = harness.build(case, LIMITS, layers)
        self.weights = [draw_weights(case, self.rng) for _ in range(layers)]
        self.layers = [self._new_layer(index) for index in range(layers)]
        self.plan = self.new_plan()
        self._free: list[int] = (1 + self.rng.permutation(SLOTS)).tolist()

    def new_plan(self) -> RecurrentPlan:
        """Another plan for the largest step."""
        return self.backend.new_plan(LIMITS)

    def take_slot(self) -> int:
        """A slot that nobody holds."""
        return self._free.pop()

    def admit(self, n: int, *, dirty: bool = True) -> Stream:
        """A new sequence of n tokens in a zeroed slot, in which (`dirty`) another one had been."""
        return Stream(self.case, self.weights, draw_tokens(self.case, self.rng, n), self._fresh_slot(dirty))

    def again(self, sequence: Stream) -> Stream:
        """A new sequence of the same tokens."""
        return replace(sequence, slot=self._fresh_slot(True), done=0)

    def end(self, sequence: Stream) -> None:
        """Its slot is free again, and holds nothing that may be read."""
        for layer in self.layers:
            for plane in layer.planes.values():
                pool.fill(plane[sequence.slot], torch.nan)
        self._free.insert(0, sequence.slot)

    @torch.inference_mode()
    def zero(self, slots: Sequence[int]) -> None:
        """In every layer."""
        for layer in self.layers:
            self.backend.zero(layer, self.int32(slots))

    def fork(self, sequences: Sequence[Stream]) -> list[Stream]:
        """Branches of sequences where they stand, all copied in one call a layer."""
        branches = [one.branch(one.done, self.rng, self.take_slot()) for one in sequences]
        sources, targets = (self.int32([one.slot for one in group]) for group in (sequences, branches))
        with torch.inference_mode():
            for layer in self.layers:
                self.backend.fork(layer, sources, targets)
        return branches

    def step(self, rows: Sequence[Row], shape: Shape | None = None) -> None:
        """Fill, step the first layer, judge, move on."""
        step = Step(self, rows, shape or Shape())
        step.fill()
        step.run()
        step.commit()

    def run(self, *work: tuple[Stream, int], leading: int = 0, padding: tuple[int, ...] = ()) -> None:
        """A step of (sequence, tokens)."""
        self.step([Row(*one) for one in work], Shape(leading, padding))

    def int32(self, values: Sequence[int]) -> Tensor:
        """On the device."""
        return torch.tensor(list(values), dtype=torch.int32, device=self.harness.device)

    def content(self, layer: int = 0) -> dict[str, Tensor]:
        """A layer's planes bit by bit, [slots, bytes]."""
        return {name: pool.bytes_of(plane).cpu() for name, plane in self.layers[layer].planes.items()}

    def close(self) -> None:
        """Plan and backend."""
        self.plan.close()
        self.backend.close()

    def _fresh_slot(self, dirty: bool) -> int:
        slot = self.take_slot()
        if dirty:
            for layer in self.layers:
                pool.litter(layer.planes, [slot], GARBAGE, seed=slot)
        self.zero([slot])
        return slot

    @one_thread()
    def _new_layer(self, index: int) -> RecurrentLayer:
        """Planes of a layer, NaN but for slot 0; they lie in the middle of a pool, as core's do."""
        planes = {}
        for plane in self.harness.descriptor.state_layouts(self.case.spec):
            shape = (3, SLOTS + 1, *plane.shape)
            whole = self.harness.platform.allocate("kv", shape, DTYPES[plane.dtype])
            pool.fill(whole, torch.nan)
            planes[plane.name] = whole[1]
        pool.litter(planes, [0], GARBAGE, seed=self.harness.target.seed)
        weights = {name: values.to(self.harness.device) for name, values in self.weights[index].items()}
        return RecurrentLayer(index, planes, weights)


class Step:
    """One step: batch, inputs, and what must come of it. A check may exchange any of them."""

    def __init__(self, world: World, rows: Sequence[Row], shape: Shape, *, plan: RecurrentPlan | None = None) -> None:
        self.world = world
        self.rows = rows
        self.shape = shape
        self.plan = plan or world.plan
        self.spans = [(row.sequence, row.sequence.done, row.sequence.done + row.n) for row in rows]
        padding = list(shape.padding)
        self.n_query = np.array([row.n for row in rows] + padding, np.int32)
        self.context = np.array([stop for _, _, stop in self.spans] + padding, np.int32)
        self.state_slots = world.int32([row.sequence.slot for row in rows] + [0] * len(padding))
        self.batch = self._batch()
        self.inputs = self._inputs()
        self.snapshots = self._snapshots()

    @property
    def tokens(self) -> int:
        """Without padding."""
        return sum(row.n for row in self.rows)

    def fill(self) -> None:
        """Prepare the plan."""
        self.world.backend.fill(self.plan, self.batch, self.state_slots, self.snapshots, self.shape.keep)

    @torch.inference_mode()
    def run(self, layer: int = 0) -> None:
        """Step one layer between guards, and judge it."""
        guarded = self.guarded()
        self.world.backend.step(self.plan, self.world.layers[layer], self.inputs, guarded.inner)
        self.judge(guarded, layer)

    def guarded(self) -> pool.Guarded:
        """A result full of canaries, and of NaN for padding tokens."""
        spec = self.world.case.spec
        tokens = int(self.n_query.sum())
        made = pool.Guarded(tokens, (spec.heads, spec.head_dim), DTYPES[spec.dtype], self.world.harness.device)
        made.inner[self.tokens :] = torch.nan
        return made

    def judge(self, guarded: pool.Guarded, layer: int = 0) -> None:
        """Raises `Failed` unless the outputs pass the gates, and padding and slot 0 are finite."""
        where = f"{self.world.case}: {self}"
        out = guarded.covered(0, int(self.n_query.sum()), "out", where)
        finite(out, "out", where)
        for name, plane in self.world.layers[layer].planes.items():
            finite(plane[0].float().cpu(), f"slot 0 of plane {name}", where)
        if self.tokens:
            truth = truth_of(self.spans, layer)
            self.world.margins.judge(truth, self.world.case.coarsest, out[: self.tokens], None, where)

    def commit(self) -> None:
        """The sequences stand where the step left them."""
        for sequence, _, stop in self.spans:
            sequence.done = stop

    def __str__(self) -> str:
        rows = ", ".join(f"{start}+{stop - start}" for _, start, stop in self.spans)
        shape = "".join(f", {name}={value}" for name, value in vars(self.shape).items() if value)
        return f"rows done+new [{rows}]{shape}"

    def _batch(self) -> Batch:
        device, padding = self.world.harness.device, self.shape.padding
        leading = self.shape.leading
        q_len = int(self.n_query[0]) if leading else 0
        if leading == len(self.rows) and q_len == 1 and set(padding) <= {1}:
            leading = len(self.n_query)  # as core pads a decode step
        cu_q = np.concatenate(([0], np.cumsum(self.n_query))).astype(np.int32)
        starts = np.repeat(self.context - self.n_query, self.n_query)
        positions = np.arange(cu_q[-1]) - np.repeat(cu_q[:-1], self.n_query) + starts
        return Batch(
            rows=len(self.n_query),
            tokens=int(cu_q[-1]),
            leading=leading,
            q_len=q_len,
            cu_q=torch.from_numpy(cu_q).to(device),
            context=torch.from_numpy(self.context.copy()).to(device),
            positions=torch.from_numpy(positions.astype(np.int32)).to(device),
            slots=self.world.int32([*range(1, len(self.rows) + 1), *[0] * len(padding)]),
            host_q=self.n_query,
            host_context=self.context,
        )

    @one_thread()
    def _inputs(self) -> dict[str, Tensor]:
        """Those of the real tokens, then large ones of padding; slices of wider tensors where the shape says so."""
        world, device = self.world, self.world.harness.device
        extra = draw_tokens(world.case, world.rng, sum(self.shape.padding), size=100.0)
        parts = [sequence.part(start, stop) for sequence, start, stop in self.spans]
        inputs = {name: torch.cat([*(part[name] for part in parts), extra[name]]).to(device) for name in extra}
        if not self.shape.fused:
            return inputs
        return {
            name: torch.cat((values, values + 1, values), 1)[:, : values.shape[1]] for name, values in inputs.items()
        }

    def _snapshots(self) -> Snapshots | None:
        found = [(number, *one) for number, row in enumerate(self.rows) for one in row.snapshots]
        if not found:
            return None
        return Snapshots(*(torch.tensor(column, dtype=torch.int32) for column in zip(*found, strict=True)))


def ask(harness: Harness, case: Case, what: str) -> Outcome:
    """Ask for a case that is declared as a no: a prompt and two more tokens."""

    def attempt() -> None:
        world = World(harness, case)
        sequence = world.admit(12)
        for n in (10, 1, 1):
            world.run((sequence, n))

    return refusal(attempt, what)


def each(harness: Harness, cases: Sequence[Case], scenario: Callable[[World], None], *, layers: int = 1) -> Outcome:
    """Run a scenario in a world of its own for every case; the worst margins of all."""
    worst = Margins()
    for case in cases:
        world = World(harness, case, layers=layers)
        world.margins = worst
        scenario(world)
        world.close()
    return worst.figures()
