"""Recorded steps: the same calls on the same addresses, filled anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from srtkit.spec.layers import DTYPES
from srtkit_conformance.check import Outcome, check
from srtkit_conformance.kits.attention.case import Case, rows_of
from srtkit_conformance.kits.attention.harness import Harness, Rig
from srtkit_conformance.kits.attention.step import Step, ask
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_conformance.kits.numeric.pool import CANARY, Guarded
from srtkit_conformance.target import Target

CLAUSE = "attention/1.0: what changes from step to step lives in the plan at fixed addresses; store and attend record"
EXPLAIN = (
    "Lengths, indices or a split of the first fill are baked into the recording; a tensor is made anew in fill; rows "
    "of a larger fill remain. On a device without graphs the calls are repeated as recorded."
)


class Recorded:
    """store and attend of one plan over static tensors, recorded where the device and the backend can."""

    def __init__(self, rig: Rig, largest: Case, *, graph: bool) -> None:
        self.step = step = Step(rig, largest)
        rows = np.zeros((len(step.n_query), rig.limits.max_pages), np.int32)
        step.view = replace(step.view, page_table=torch.from_numpy(rows).to(rig.harness.device), host_pages=rows)
        spec, device = rig.spec, rig.harness.device
        tokens = len(step.q)
        self._out = Guarded(tokens, (spec.q_heads, spec.v_head_dim), DTYPES[spec.dtype], device)
        self._lse = Guarded(tokens, (spec.q_heads,), torch.float32, device) if rig.harness.can.lse else None
        self._replay: Callable[[], None] = self._work
        step.fill()
        self._work()  # on page 0; kernels are chosen and compiled before a recording
        graphs = rig.harness.platform.graphs()
        self.mode = "repeated"
        if graph and graphs is not None:
            self._replay = graphs.capture(graphs.new_pool(), self._work).replay
            self.mode = "graph"

    @torch.inference_mode()
    def _work(self) -> None:
        step = self.step
        step.rig.backend.store(step.plan, step.layer, *step.new)
        lse = None if self._lse is None else self._lse.inner
        step.rig.backend.attend(step.plan, step.layer, step.q, self._out.inner, fresh=step.new, lse=lse)

    def run(self, other: Step, margins: Margins) -> None:
        """Bring the other step's content to the static addresses, fill, replay, and judge."""
        mine = self.step
        for name, plane in other.layer.planes.items():
            mine.layer.planes[name][: len(plane)].copy_(plane)
        for name in ("cu_q", "context", "positions", "slots"):
            vars(mine.batch)[name].copy_(vars(other.batch)[name])
        table = np.zeros_like(mine.view.host_pages)
        table[:, : other.pages.shape[1]] = other.pages
        mine.view.page_table.copy_(torch.from_numpy(table))
        mine.view.slot_mapping.copy_(other.view.slot_mapping)
        for target, source in zip((mine.q, *mine.new), (other.q, *other.new), strict=True):
            target.copy_(source)
        if mine.batch.tree is not None and other.batch.tree is not None:
            mine.batch.tree.bits.copy_(other.batch.tree.bits)
        mine.batch = replace(mine.batch, host_q=other.n_query, host_context=other.context)
        mine.view = replace(mine.view, host_pages=table)
        mine.fill()
        for guarded in (self._out, self._lse):
            if guarded is not None:
                guarded.inner.fill_(CANARY)
        self._replay()
        other.read(self._out, self._lse).check(margins)


def _replayed(target: Target, level: Sequence[str], fills: Callable[[Harness], Sequence[Case]]) -> Outcome:
    """Record the first case, which is the largest; replay it with every case, and with the first again."""
    harness = Harness(target)
    cases = fills(harness)
    rig = harness.rig(*cases)
    recorded = Recorded(rig, cases[0], graph=harness.can.capture in level)
    margins = Margins()
    steps = [Step(rig, case, salt="other") for case in cases]
    for step in (*steps, steps[0], steps[-1]):
        recorded.run(step, margins)
    return {"mode": recorded.mode, **margins.figures()}


@check("attention.capture.one_token", level=1, clause=CLAUSE, explain=EXPLAIN, isolated=True)
def one_token(target: Target) -> Outcome:
    """Decode: shorter rows, rows in another order, and fewer rows with padding, after the largest."""

    def fills(harness: Harness) -> list[Case]:
        page = harness.page
        shapes = (
            [(5 * page + 2, 1), (page - 4, 1), (2 * page, 1)],
            [(3, 1), (5 * page, 1), (page, 1)],
            [(5 * page + 1, 1)],
        )
        return [harness.case(rows_of(*rows), leading=len(rows), padding=3 - len(rows)) for rows in shapes]

    return _replayed(target, ("one_token", "uniform", "any"), fills)


@check("attention.capture.uniform", level=1, clause=CLAUSE, explain=EXPLAIN, isolated=True)
def uniform(target: Target) -> Outcome:
    """Leading rows of several queries."""

    def fills(harness: Harness) -> list[Case]:
        n, page = min(4, harness.can.max_q_len_decode), harness.page
        shapes = ([(5 * page + 2, n), (page - 4, n)], [(3, n), (5 * page, n)], [(5 * page, n), (0, n)])
        return [harness.case(rows_of(*rows), leading=2) for rows in shapes]

    return _replayed(target, ("uniform", "any"), fills)


@check(
    "attention.capture.tree",
    level=1,
    clause="attention/1.0: a tree mask is read when the step runs, at the address that it had when it was recorded",
    explain="The trees of the first fill are baked into the recording, or a copy of them is made in fill.",
    isolated=True,
)
def tree(target: Target) -> Outcome:
    """Leading rows of drafts, each step with other trees; refused where the feature is."""

    def fills(harness: Harness) -> list[Case]:
        n, page = min(9, harness.can.max_q_len_decode), harness.page
        shapes = ([(5 * page + 2, n), (page - 4, n)], [(3, n), (5 * page, n)], [(5 * page, n), (0, n)])
        return [harness.case(rows_of(*rows), leading=2, tree=True) for rows in shapes]

    harness = Harness(target)
    if not harness.has("tree_mask"):
        return ask(harness, fills(harness)[0], "the feature tree_mask")
    return _replayed(target, ("uniform", "any"), fills)


@check("attention.capture.mixed", level=1, clause=CLAUSE, explain=EXPLAIN, isolated=True)
def mixed(target: Target) -> Outcome:
    """Rows of any length, the same number of rows and tokens divided otherwise; as core pads, where it records them."""

    def fills(harness: Harness) -> list[Case]:
        page = harness.page
        shapes: tuple[list[tuple[int, int]], ...] = (
            [(5 * page, 1), (2 * page, 9), (0, 20)],
            [(9, 1), (0, 25), (5 * page, 4)],
            [(5 * page, 1), (0, 1), (3, 28)],
        )
        if harness.can.capture != "any":
            return [harness.case(rows_of(*rows), leading=1) for rows in shapes]
        shapes += ([(0, 25), (9, 1)], [(7, 1), (9, 1), (2, 3)])
        tokens, rows = 30, 4
        made = []
        for one in shapes:
            over = tokens - sum(n for _, n in one)
            made.append(harness.case(rows_of(*one), padding=rows - len(one), over=over))
        return made

    return _replayed(target, ("any",), fills)


@check(
    "attention.capture.shared",
    level=1,
    clause="attention/1.0: which rows share pages may change from step to step, as all else at a plan's addresses",
    explain="Rows that share their leading pages are found once and taken for the same ones in a later step, or the "
    "recording has their number, their pages or their order baked in.",
    isolated=True,
)
def shared(target: Target) -> Outcome:
    """No row shares pages, then all do, then three, then two and two, and again none."""

    def fills(harness: Harness) -> list[Case]:
        pages = -(-600 // harness.page)  # what a backend may find worth it
        n = pages * harness.page
        shapes = (
            [(n + 5, 1), (n + 9, 1), (n + 40, 1), (n + 2, 1)],
            [(n + 5, 1), (n + 9, 1, 0, pages), (n + 40, 1, 0, pages), (n + 2, 1, 0, pages)],
            [(20, 1), (n + 9, 1), (n + 40, 1, 1, pages), (n + 2, 1, 1, pages)],
            [(n + 5, 1), (n + 9, 1), (n + 40, 1, 1, pages), (n + 2, 1, 0, pages)],
        )
        return [harness.case(rows_of(*rows), leading=4, kv_heads=1) for rows in shapes]

    return _replayed(target, ("one_token", "uniform", "any"), fills)
