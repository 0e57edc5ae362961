"""Backends that read, write or keep what they must not: pages, strides, plans, inputs. One fault each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
    TreeMask,
)
from srtkit.spec.errors import EngineError
from srtkit.spec.step_plan import Ints
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.attention.row_by_row import RowByRow
from srtkit_conformance.mutants.attention.wrap import Call, Wrapped, WrappedPlan, wrapped


class AddedMask(RowByRow):
    """Reads the tail of the last page, and adds -inf to its scores."""

    whole_pages = True

    def mask(self, scores: Tensor, see: Tensor) -> Tensor:
        """inf - inf is NaN."""
        return scores + torch.zeros(see.shape).masked_fill(~see, -torch.inf)


@mutant(
    "mask_added",
    of="torch",
    sentence="the unused tail of a page is masked by adding -inf to its scores",
    killed_by=("attention.memory.tail",),
)
def mask_added(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """NaN where the garbage overflows."""
    return wrapped(descriptor, AddedMask)


class NextPage(RowByRow):
    """Reads one page past a row's end, found by the next page id, and masks it."""

    def keys(self, plan: WrappedPlan, layer: LayerHandle, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """A NaN in V survives a probability of 0."""
        k, v = super().keys(plan, layer, row, start, stop)
        _, view = plan.filled
        if stop % self.page or self.spec.mla is not None:
            return k, v
        number = min(int(view.host_pages[row, stop // self.page - 1]) + 1, len(layer.planes["v"]) - 1)
        after = layer.planes["v"][number].float()
        return k, v + 0 * after.sum()


@mutant(
    "reads_next_page",
    of="torch",
    sentence="a row that ends with its page reads the page with the next id, times 0",
    killed_by=("attention.memory.unreferenced",),
)
def reads_next_page(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Harmless where that page holds numbers."""
    return wrapped(descriptor, NextPage)


class ReadsFreed(RowByRow):
    """Reads from the row's first token on."""

    def keys(self, plan: WrappedPlan, layer: LayerHandle, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """What stands before the window is multiplied by 0."""
        k, v = super().keys(plan, layer, row, start, stop)
        if start == 0:
            return k, v
        _, before = super().keys(plan, layer, row, 0, start)
        return k, v + 0 * before.sum()


@mutant(
    "reads_before_window",
    of="torch",
    sentence="tokens before the window are read and multiplied by 0",
    killed_by=("attention.memory.before_window",),
)
def reads_before_window(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Their pages may have been freed."""
    return wrapped(descriptor, ReadsFreed)


class WrongLastPage(RowByRow):
    """Page number context // page - 1 is looked up for the last page: one too early unless the row ends inside."""

    def keys(self, plan: WrappedPlan, layer: LayerHandle, row: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The page before, where the row ends exactly with a page."""
        k, v = super().keys(plan, layer, row, start, stop)
        size = self.page
        if stop % size or stop < 2 * size or start > stop - 2 * size or size == 1:
            return k, v
        return tuple(torch.cat((x[:-size], x[-2 * size : -size])) for x in (k, v))  # type: ignore[return-value]


@mutant(
    "wrong_last_page",
    of="torch",
    sentence="a row that ends exactly with a page reads the page before in its place",
    killed_by=("attention.layout.page_sizes",),
)
def wrong_last_page(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Off by one in one row of sixteen."""
    return wrapped(descriptor, WrongLastPage)


class AscendingPages(Wrapped):
    """Takes pages for sorted."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Each row's pages in ascending order."""
        pages = view.host_pages.copy()
        for row, context in enumerate(batch.host_context.tolist()):
            pages[row, : -(-context // self.page)].sort()
        return batch, replace(view, host_pages=pages)


@mutant(
    "pages_sorted",
    of="torch",
    sentence="a row's pages are read in ascending order",
    killed_by=("attention.steps.order",),
)
def pages_sorted(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right in a fresh pool."""
    return wrapped(descriptor, AscendingPages)


class AdjacentPages(Wrapped):
    """The page's size is its stride."""

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """As if nothing lay between pages."""
        planes = {}
        for name, plane in layer.planes.items():
            stride = plane[0].numel()
            planes[name] = plane.as_strided(plane.shape, (stride, *plane.stride()[1:]))
        return replace(layer, planes=planes)


@mutant(
    "pages_adjacent",
    of="torch",
    sentence="pages of a layer are taken for adjacent",
    killed_by=("attention.memory.page_stride",),
)
def pages_adjacent(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """any_page_stride is declared."""
    return wrapped(descriptor, AdjacentPages)


class DenseTable(Wrapped):
    """The table's width is its row stride."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Rows one after the other."""
        pages = view.host_pages
        dense = as_strided(pages, pages.shape, (pages.shape[1] * pages.itemsize, pages.itemsize))
        return batch, replace(view, host_pages=dense)


@mutant(
    "table_stride_ignored",
    of="torch",
    sentence="the page table's width is taken for its row stride",
    killed_by=("attention.memory.page_table",),
)
def table_stride_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for one row, and for the longest."""
    return wrapped(descriptor, DenseTable)


class DenseQueries(Wrapped):
    """A token's queries follow those of the token before."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """Without the stride."""
        heads, size = how.q.shape[1:]
        super().call(plan, layer, replace(how, q=how.q.as_strided(how.q.shape, (heads * size, size, 1))))


@mutant("q_stride_ignored", of="torch", sentence="q is taken for dense", killed_by=("attention.memory.slices",))
def q_stride_ignored(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Models hand in slices of a fused projection."""
    return wrapped(descriptor, DenseQueries)


class ShortAddresses(Wrapped):
    """page * page_elements in 32 bits."""

    elements = 1

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """Learn how large a page is."""
        self.elements = max(plane[0].numel() for plane in layer.planes.values())
        return layer

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Page ids beyond 2 ** 31 elements wrap."""
        return batch, replace(view, host_pages=view.host_pages % min((1 << 31) // self.elements, 2**31 - 1))


@mutant(
    "addresses_in_32_bits",
    of="torch",
    sentence="a page's offset is computed in 32 bits",
    killed_by=("attention.memory.int64",),
)
def addresses_in_32_bits(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right in pools of less than 2 ** 31 elements."""
    return wrapped(descriptor, ShortAddresses)


class StoresTwice(Wrapped):
    """Also one slot further."""

    def new_plan(self, limits: object) -> AttentionPlan:
        """Two inner plans, the second for the other slots."""
        plan = super().new_plan(limits)  # type: ignore[arg-type]
        self._second = self.inner.new_plan(limits)  # type: ignore[arg-type]
        return plan

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """The next slot of the same page first, so that the step's own tokens are right."""
        assert isinstance(plan, WrappedPlan)
        batch, view = plan.filled
        slots = view.slot_mapping
        beside = slots // self.page * self.page + (slots + 1) % self.page
        self.inner.fill(self._second, batch, replace(view, slot_mapping=beside.int()))
        self.inner.store(self._second, self.handle(layer), k, v)
        super().store(plan, layer, k, v)


@mutant(
    "stores_twice",
    of="torch",
    sentence="store writes each token to the next slot of its page as well",
    killed_by=("attention.memory.store",),
)
def stores_twice(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The tail of a page is overwritten, and where a page is full its first token."""
    return wrapped(descriptor, StoresTwice)


class IgnoresRows(Wrapped):
    """ALL, whatever is asked for."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """Every row."""
        super().call(plan, layer, replace(how, rows=Rows.ALL))


@mutant(
    "writes_other_rows",
    of="torch",
    sentence="attend of leading rows or of the rest writes all rows",
    killed_by=("attention.steps.rows",),
)
def writes_other_rows(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Another call's results are overwritten."""
    return wrapped(descriptor, IgnoresRows)


class ScalesInPlace(Wrapped):
    """q *= scale."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """q is ours, or is it."""
        super().call(plan, layer, how)
        how.q.mul_(self.spec.scale)


@mutant("q_changed", of="torch", sentence="q is scaled in place", killed_by=("attention.memory.inputs",))
def q_changed(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The first result is right."""
    return wrapped(descriptor, ScalesInPlace)


class FreshIsAll(RowByRow):
    """Keys at hand are all keys."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """With fresh keys a row of several queries sees these alone."""
        batch, _ = plan.filled
        if how.fresh is not None:
            several = batch.host_q > 1
            plan.batch = replace(batch, host_context=np.where(several, batch.host_q, batch.host_context))
        super().call(plan, layer, how)
        plan.batch = batch


@mutant(
    "fresh_is_all",
    of="torch",
    sentence="given fresh keys, a chunk does not see its cached prefix",
    killed_by=("attention.steps.fresh",),
)
def fresh_is_all(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A hint that changes the result."""
    return wrapped(descriptor, FreshIsAll)


class BakedFill(Wrapped):
    """A fill of the same shape is taken for the same fill."""

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Once per plan and shape."""
        assert isinstance(plan, WrappedPlan)
        before = plan.batch
        if before is None or (before.rows, before.tokens) != (batch.rows, batch.tokens) or not self.bakes(batch):
            super().fill(plan, batch, view)

    def bakes(self, batch: Batch) -> bool:
        """Whether steps of this kind are concerned: decode."""
        return batch.leading == batch.rows and batch.q_len == 1


class BakedUniform(BakedFill):
    """As `BakedFill`."""

    def bakes(self, batch: Batch) -> bool:
        """Leading rows of several queries."""
        return batch.leading == batch.rows and batch.q_len > 1


class BakedMixed(BakedFill):
    """As `BakedFill`."""

    def bakes(self, batch: Batch) -> bool:
        """Rows of any length."""
        return batch.leading < batch.rows


class BakedTrees(Wrapped):
    """Drafts of a plan keep the trees that it met first."""

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        super().__init__(inner, build)
        self.first: dict[WrappedPlan, TreeMask] = {}

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """They see what others saw."""
        if batch.tree is None:
            return batch, view
        tree = self.first.setdefault(plan, TreeMask(batch.tree.bits.clone()))
        return replace(batch, tree=tree), view


@mutant(
    "trees_baked",
    of="torch",
    sentence="a step of drafts keeps the trees of the first one of its plan",
    killed_by=("attention.capture.tree",),
)
def trees_baked(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Lengths and pages are right."""
    return wrapped(descriptor, BakedTrees)


@mutant(
    "decode_baked",
    of="torch",
    sentence="a decode step of as many rows as the one before keeps its lengths and pages",
    killed_by=("attention.capture.one_token",),
)
def decode_baked(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """What a recording with constants does."""
    return wrapped(descriptor, BakedFill)


@mutant(
    "uniform_baked",
    of="torch",
    sentence="a step of several queries a row keeps the lengths and pages of the one before",
    killed_by=("attention.capture.uniform",),
)
def uniform_baked(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Decode is right."""
    return wrapped(descriptor, BakedUniform)


@mutant(
    "mixed_baked",
    of="torch",
    sentence="a mixed step of as many rows and tokens as the one before keeps its lengths and pages",
    killed_by=("attention.capture.mixed",),
)
def mixed_baked(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Decode is right."""
    return wrapped(descriptor, BakedMixed)


class StaleLengths(Wrapped):
    """Lengths are written over only where they grow."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """The largest so far of each row, as far as the table goes."""
        context = batch.host_context.copy()
        if plan.batch is not None:
            both = min(len(context), len(plan.batch.host_context))
            context[:both] = np.maximum(context[:both], plan.batch.host_context[:both])
        room = view.host_pages.shape[1] * view.page_tokens
        return replace(batch, host_context=np.minimum(context, room).astype(np.int32)), view


@mutant(
    "lengths_stale",
    of="torch",
    sentence="a plan keeps a row's longer length from the fill before",
    killed_by=("attention.steps.refill",),
)
def lengths_stale(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A smaller step after a larger one."""
    return wrapped(descriptor, StaleLengths)


class OneFill(Wrapped):
    """The plan filled last serves all."""

    _last: WrappedPlan

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Remember it in the backend."""
        super().fill(plan, batch, view)
        assert isinstance(plan, WrappedPlan)
        self._last = plan

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """With the last plan."""
        super().call(self._last, layer, how)


@mutant(
    "state_in_backend",
    of="torch",
    sentence="attend uses the plan that was filled last, not the one it is given",
    killed_by=("attention.steps.two_plans",),
)
def state_in_backend(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right while one plan is alive."""
    return wrapped(descriptor, OneFill)


class FirstSinks(Wrapped):
    """Sinks of the first layer seen."""

    _sinks: Tensor | None = None

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """Serve all layers."""
        if self._sinks is None:
            self._sinks = layer.sinks
        return replace(layer, sinks=self._sinks)


@mutant(
    "first_layers_sinks",
    of="torch",
    sentence="the first layer's sinks serve every layer of the group",
    killed_by=("attention.steps.layers",),
)
def first_layers_sinks(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right in a model of one layer."""
    return wrapped(descriptor, FirstSinks)


class NanPadding(Wrapped):
    """Padding rows divide by zero."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """NaN for slot 0."""
        super().call(plan, layer, how)
        batch, _ = plan.filled
        ends = batch.host_q.cumsum()
        for row in (batch.slots == 0).nonzero().flatten().tolist():
            if how.rows is Rows.ALL:
                how.out[ends[row] - batch.host_q[row] : ends[row]] = torch.nan


@mutant("padding_nan", of="torch", sentence="padding rows come out as NaN", killed_by=("attention.steps.padding",))
def padding_nan(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The next layer's mixture of experts or norm meets it."""
    return wrapped(descriptor, NanPadding)


class FirstMembersPages(Wrapped):
    """A group's first row stands for its members."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """All of its pages, not the shared ones only."""
        if batch.groups is None:
            return batch, view
        pages = view.host_pages.copy()
        for first, members in zip(batch.groups.first_row.tolist(), batch.groups.members.tolist(), strict=True):
            pages[first : first + members] = pages[first]
        return batch, replace(view, host_pages=pages)


@mutant(
    "group_is_first_row",
    of="torch",
    sentence="members of a prefix group read the first member's own pages as well",
    killed_by=("attention.steps.prefix_groups",),
)
def group_is_first_row(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The hint changes the result."""
    return wrapped(descriptor, FirstMembersPages)


class FirstSharing(Wrapped):
    """Which rows share pages is found once a plan, in the first step in which any do."""

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        super().__init__(inner, build)
        self.found: dict[int, tuple[Ints, int]] = {}

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """They get the pages of the first of them."""
        pages = view.host_pages.copy()
        rows = np.flatnonzero(pages[:, 0] == pages[0, 0]).astype(np.int32)
        if id(plan) not in self.found and pages[0, 0] and len(rows) > 1:
            alike = (pages[rows] == pages[0]).all(axis=0) & (pages[0] != 0)
            self.found[id(plan)] = rows, int(np.append(alike, False).argmin())
        rows, n = self.found.get(id(plan), (rows[:1], 0))
        pages[rows, :n] = pages[0, :n]
        return batch, replace(view, host_pages=pages)


@mutant(
    "first_sharing",
    of="torch",
    sentence="rows that shared pages once are taken to share them in every later step of the plan",
    killed_by=("attention.capture.shared",),
)
def first_sharing(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Groups that were found when the step was recorded."""
    return wrapped(descriptor, FirstSharing)


@mutant(
    "not_rebuilt",
    of="torch",
    sentence="after close the backend cannot be built again",
    killed_by=("attention.steps.lifecycle",),
)
def not_rebuilt(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A library handle that is freed for good."""
    closed: list[bool] = []

    class Closing(Wrapped):
        def close(self) -> None:
            closed.append(True)
            super().close()

    def backend(inner: AttentionBackend, build: AttentionBuild) -> AttentionBackend:
        if closed:
            raise EngineError("attention:mutant", "the library was shut down")
        return Closing(inner, build)

    return wrapped(descriptor, backend)
