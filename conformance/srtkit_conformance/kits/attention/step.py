"""A case laid out in memory for a backend: history stored, poison around it, batch and view; and running it.

Entries reach the pool through `store` alone, so every layout can be tested; poison and garbage are laid
page by page. Judges nothing beside guards: the gates do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import Batch, GroupView, LayerHandle, PrefixGroups, Rows, TreeMask
from srtkit.spec.layers import DTYPES
from srtkit.spec.step_plan import Ints
from srtkit_conformance.check import Outcome
from srtkit_conformance.kits.attention.case import Case
from srtkit_conformance.kits.attention.content import Content, drawn
from srtkit_conformance.kits.attention.harness import Harness, Rig
from srtkit_conformance.kits.numeric import pool
from srtkit_conformance.kits.numeric.gates import Margins, Truth, finite
from srtkit_conformance.kits.numeric.refusals import refusal


@dataclass
class Result:
    """What one call gave for the real tokens it covers, on the CPU, and where it came from."""

    case: Case
    out: Tensor
    lse: Tensor | None
    truth: Truth

    def check(self, margins: Margins) -> None:
        """The gates; raises `Failed`."""
        margins.judge(self.truth, self.case.dtype, self.out, self.lse, self.case)


class Step:
    """One case on a rig: own pool, own tensors, own plan. A check may exchange any of them."""

    def __init__(self, rig: Rig, case: Case, salt: str = "", *, content: Content | None = None) -> None:
        self.rig = rig
        self.case = case
        target = rig.harness.target
        self.content = content or drawn(case, target.seed, salt)
        device = rig.harness.device
        self.n_query = np.array([row.n_query for row in case.rows] + case.padding_queries, np.int32)
        self.context = np.array([row.context for row in case.rows] + [1] * case.padding, np.int32)
        self.pages = self._page_table(target.rng(f"pages {salt}{case}"))
        poison = case.first_page <= 1
        planes = pool.new_planes(rig.harness.platform, rig.layout, self.n_pages, adjacent=case.adjacent, poison=poison)
        scales = self.content.scales
        self.layer = LayerHandle(
            index=0,
            planes=planes,
            sinks=None if self.content.sinks is None else self.content.sinks.to(device, copy=True),
            scales=None if scales is None else {name: scale.to(device, copy=True) for name, scale in scales.items()},
        )
        self.q, self.new = self.inputs()
        self.batch, self.view = self._batch(), self.view_of(self.pages, self.n_query, self.context)
        self.plan = rig.new_plan()
        self._store_history()

    # --- running

    def run(self, *, rows: Rows = Rows.ALL, fresh: bool = False) -> Result:
        """fill, store, attend."""
        self.fill()
        self.store()
        return self.attend(rows=rows, fresh=fresh)

    def fill(self) -> None:
        """Prepare the plan."""
        self.rig.backend.fill(self.plan, self.batch, self.view)

    @torch.inference_mode()
    def store(self) -> None:
        """Store this step's entries."""
        self.rig.backend.store(self.plan, self.layer, *self.new)

    @torch.inference_mode()
    def attend(self, *, rows: Rows = Rows.ALL, fresh: bool = False, lse: bool | None = None) -> Result:
        """Attend between guards, with lse where it is declared or told.

        Padding rows must come out finite. Raises `Failed` for writes elsewhere.
        """
        spec, device = self.case.spec, self.rig.harness.device
        tokens = len(self.q)
        out = pool.Guarded(tokens, (spec.q_heads, spec.v_head_dim), DTYPES[spec.dtype], device)
        wanted = bool(self.rig.harness.can.lse) if lse is None else lse
        sums = pool.Guarded(tokens, (spec.q_heads,), torch.float32, device) if wanted else None
        self.rig.backend.attend(
            self.plan,
            self.layer,
            self.q,
            out.inner,
            rows=rows,
            fresh=self.new if fresh else None,
            lse=None if sums is None else sums.inner,
        )
        return self.read(out, sums, rows)

    def read(self, out: pool.Guarded, lse: pool.Guarded | None, rows: Rows = Rows.ALL) -> Result:
        """The result of a call that covers `rows`."""
        case = self.case
        begin_row = self.batch.leading if rows is Rows.REST else 0
        end_row = self.batch.leading if rows is Rows.LEADING else len(self.n_query)
        begin, end = (int(self.n_query[:row].sum()) for row in (begin_row, end_row))
        told = case if rows is Rows.ALL else f"rows={rows.value} of {case}"
        out_values = out.covered(begin, end, "out", told)
        lse_values = None if lse is None else lse.covered(begin, end, "lse", told)
        finite(out_values, "out", told)
        real = min(end, case.tokens) - begin
        truth = self.content.truth(begin_row, min(end_row, len(case.rows)))
        return Result(case, out_values[:real], None if lse_values is None else lse_values[:real], truth)

    # --- laying out

    def group(self, first_row: int, members: int, pages: int) -> None:
        """Give the hint that these rows share their first pages."""
        self.batch.groups = PrefixGroups(*(np.array([x], np.int32) for x in (first_row, members, pages)))

    def slots(self, row: int, begin: int, end: int) -> Ints:
        """Slots of a row's tokens [begin, end)."""
        position = np.arange(begin, end)
        found = self.pages[row, position // self.case.page] * self.case.page + position % self.case.page
        slots: Ints = found.astype(np.int32)
        return slots

    def _page_table(self, rng: np.random.Generator) -> Ints:
        """[rows, pages of the longest]: own pages for each row apart from those it shares; page 0 for the rest.

        It is the left part of a wider table, as in core.
        """
        case = self.case
        need = [-(-row.context // case.page) for row in case.rows]
        own = [n - row.shared for n, row in zip(need, case.rows, strict=True)]
        first = max(1, case.first_page)
        ids = np.arange(first, first + sum(own))
        self.n_pages = first + len(ids) + 4  # the last ones are never used
        if case.permuted:
            ids = rng.permutation(np.arange(first, self.n_pages))[: len(ids)]
        limits = self.rig.limits
        table = np.zeros((limits.max_rows, limits.max_pages), np.int32)
        for number, (row, n) in enumerate(zip(case.rows, need, strict=True)):
            table[number, : row.shared] = table[row.like, : row.shared]
            table[number, row.shared : n], ids = ids[: n - row.shared], ids[n - row.shared :]
        return table[: len(self.n_query), : max([1, *need])]

    def inputs(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Copies of q and the new entries on the device; slices of one tensor where the case says so."""
        content, device = self.content, self.rig.harness.device
        q, first, second = (x.to(device, copy=True) for x in (content.q, *content.new))
        if not self.case.fused:
            return q, (first, second)
        parts = [x.flatten(1) for x in (q, first, second)]
        whole = torch.split(torch.cat(parts, 1), [part.shape[1] for part in parts], 1)
        q, first, second = (part.view(x.shape) for part, x in zip(whole, (q, first, second), strict=True))
        return q, (first, second)

    def view_of(self, pages: Ints, n_query: Ints, context: Ints) -> GroupView:
        """The view of rows that store the last n_query tokens of their contexts."""
        device, size = self.rig.harness.device, self.case.page
        slots = [
            pages[row, position // size] * size + position % size
            for row, (n, end) in enumerate(zip(n_query.tolist(), context.tolist(), strict=True))
            for position in np.maximum(range(end - n, end), 0).tolist()
        ]
        mapping = torch.tensor(np.array(slots, np.int32), device=device)
        whole = pages if pages.base is None else pages.base
        table = torch.from_numpy(whole).to(device)[: len(pages), : pages.shape[1]]
        return GroupView(size, table, mapping, pages)

    def _batch(self) -> Batch:
        case, device = self.case, self.rig.harness.device
        trees = self.content.trees
        mask = TreeMask(torch.stack([tree.words() for tree in trees]).to(device)) if trees else None
        leading = len(self.n_query) if case.leading == len(case.rows) and not case.tree else case.leading
        q_len = int(self.n_query[0]) if case.leading else 0
        if q_len > 1:
            leading = case.leading  # padding rows have one query
        cu_q = np.concatenate(([0], np.cumsum(self.n_query))).astype(np.int32)
        slots = [*range(1, len(case.rows) + 1), *[0] * case.padding]
        return Batch(
            rows=len(self.n_query),
            tokens=int(cu_q[-1]),
            leading=leading,
            q_len=q_len,
            cu_q=torch.from_numpy(cu_q).to(device),
            context=torch.from_numpy(self.context.copy()).to(device),
            positions=torch.from_numpy(self.content.positions()).to(device),
            slots=torch.tensor(slots, dtype=torch.int32, device=device),
            host_q=self.n_query,
            host_context=self.context,
            features=frozenset({"tree_mask"}) if trees else frozenset(),
            tree=mask,
        )

    def _store_history(self) -> None:
        """Garbage in page 0 and in all pages of every row, then the tokens before this step, stored as one step.

        Pages that lie wholly before every query's window are NaN again afterwards: they may have been freed.
        """
        case = self.case
        need = [-(-row.context // case.page) for row in case.rows]
        used = {0, *(page for n, pages in zip(need, self.pages, strict=False) for page in pages[:n].tolist())}
        pool.litter(self.layer.planes, sorted(used), case.garbage, seed=self.rig.harness.target.seed)
        rows = [number for number, row in enumerate(case.rows) if row.stored > row.shared * case.page]
        if rows:
            n_query = np.array([case.rows[r].stored - case.rows[r].shared * case.page for r in rows], np.int32)
            context = np.array([case.rows[r].stored for r in rows], np.int32)
            self._store_rows(rows, n_query, context)
        if case.window:
            freed = [max(0, row.stored - case.window + 1) // case.page for row in case.rows]
            pages = [page for mine, n in zip(self.pages, freed, strict=False) for page in mine[:n].tolist()]
            pool.spoil(self.layer.planes, pages)

    @torch.inference_mode()
    def _store_rows(self, rows: list[int], n_query: Ints, context: Ints) -> None:
        rig, device = self.rig, self.rig.harness.device
        cu_q = np.concatenate(([0], np.cumsum(n_query))).astype(np.int32)
        positions = np.concatenate([np.arange(c - n, c) for n, c in zip(n_query, context, strict=True)])
        batch = Batch(
            rows=len(rows),
            tokens=int(cu_q[-1]),
            leading=0,
            q_len=0,
            cu_q=torch.from_numpy(cu_q).to(device),
            context=torch.from_numpy(context).to(device),
            positions=torch.from_numpy(positions.astype(np.int32)).to(device),
            slots=torch.tensor([row + 1 for row in rows], dtype=torch.int32, device=device),
            host_q=n_query,
            host_context=context,
        )
        parts = zip(*(self.content.history[row] for row in rows), strict=True)
        first, second = (
            torch.cat([x[len(x) - n :] for x, n in zip(part, n_query.tolist(), strict=True)]).to(device)
            for part in parts
        )
        plan = rig.new_plan()
        rig.backend.fill(plan, batch, self.view_of(np.ascontiguousarray(self.pages[rows]), n_query, context))
        rig.backend.store(plan, self.layer, first, second)
        plan.close()


def verify(harness: Harness, cases: Iterable[Case], margins: Margins | None = None, *, fresh: bool = False) -> Margins:
    """Run each case on a backend of its own, and hold it against the gates. Raises `Failed` or `Unsupported`."""
    margins = margins or Margins()
    for case in cases:
        rig = harness.rig(case)
        step = Step(rig, case)
        step.run(fresh=fresh).check(margins)
        step.plan.close()
        rig.backend.close()
    return margins


def ask(harness: Harness, case: Case, what: str) -> Outcome:
    """Ask for a case that is declared as a no."""

    def attempt() -> None:
        verify(harness, [case])

    return refusal(attempt, what)
