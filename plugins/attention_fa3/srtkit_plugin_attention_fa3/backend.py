"""The backend of one layer group: what a step's calls of the operator are, decided once in `fill`; then the calls.

Leading rows are one call and the rest another. What a call of leading rows is given by the host depends on numbers of
rows and on the plan's limits only, so a recorded one stays right under every later fill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    PlanAdvance,
    Rows,
    TreeMask,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES as TORCH_DTYPES
from srtkit_plugin_attention_fa3 import DTYPES, INSTEAD, MAX_Q_LEN, PART, Options, declared, no_kernel
from srtkit_plugin_attention_fa3.kernels import visible_kernel
from srtkit_plugin_attention_fa3.library import Operator
from srtkit_plugin_attention_fa3.shared import FEWEST_ROWS, SharedPrefixes
from srtkit_plugin_attention_fa3.trees import Drafts, join
from srtkit_plugin_attention_triton.refusals import why_not
from srtkit_plugin_attention_triton.slots import PlaneMover, planes_of, store

Mask = Mapping[str, object]
"""What the operator is told of what is seen."""
SCHEDULED_ROWS = 992
"""A call of more rows is not planned ahead: builds differ in what they plan for so many."""
SCHEDULE_ROOM = 8
"""Integers a row that the operator's schedule may take: it takes up to four, and one beside."""


@dataclass
class _Rows:
    """One call of the operator: tokens [begin, end) of the step, and the rows that they are.

    `cu_q` counts from `begin`. `table` is no wider than the rows may need: by its width alone the operator judges how
    long they are. `mask` are the operator's arguments for what is seen. `fresh`: these rows have nothing stored before
    this step. Of `drafts` the operator reads what was stored before them, of which `context` is the length. `prefixes`
    are what rows of this call share, as a call of its own whose rows are groups; this one is then of what is behind.
    """

    begin: int
    end: int
    cu_q: Tensor
    context: Tensor
    table: Tensor
    page_tokens: int
    max_q: int
    room: Tensor
    mask: Mask
    schedule: Tensor | None = None
    fresh: bool = False
    drafts: Drafts | None = None
    prefixes: _Rows | None = None

    @property
    def max_k(self) -> int:
        """Keys that the table has room for."""
        return self.table.shape[1] * self.page_tokens


class Fa3Plan(AttentionPlan):
    """Buffers at fixed addresses, and the step that `fill` put in.

    `table` int32 [rows, pages] of a windowed group, `cu_rest` int32 [rows + 1], `stored` int32 [rows], `rooms` two
    schedules.
    """

    def __init__(
        self,
        table: Tensor | None,
        cu_rest: Tensor,
        stored: Tensor,
        rooms: Tensor,
        shared: SharedPrefixes | None,
    ) -> None:
        self.shared = shared
        self.table = table
        self.cu_rest = cu_rest
        self.stored = stored
        self.rooms = rooms
        self.batch: Batch | None = None
        self.view: GroupView | None = None
        self.leading: _Rows | None = None
        self.rest: _Rows | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self.batch is not None and self.view is not None, "attend or store before fill"
        return self.batch, self.view

    def calls(self, rows: Rows) -> Iterator[_Rows]:
        """Those that cover `rows`, in order."""
        if self.leading is not None and rows is not Rows.REST:
            yield self.leading
        if self.rest is not None and rows is not Rows.LEADING:
            yield self.rest

    def close(self) -> None:
        """Free the buffers."""
        self.table = self.shared = None
        self.cu_rest = self.stored = self.rooms = torch.empty(0)
        self.batch = self.view = self.leading = self.rest = None


class Fa3Attention(AttentionBackend):
    """Paged attention of one layer group by FlashAttention-3's operator."""

    def __init__(self, build: AttentionBuild, options: Options, operator: Operator) -> None:
        _refuse(build)
        self._spec = spec = build.group.spec
        self._platform = build.platform
        self._forward = operator.forward
        self._schedule = operator.schedule if options.schedule else None
        # With a causal mask the operator takes the tokens before the query's own as the left window: W - 1.
        self._mask = {
            "is_causal": spec.causal,
            "window_size_left": spec.window - 1 if spec.window else -1,
            "window_size_right": 0 if spec.window else -1,
            "num_splits": options.num_splits,
        }
        # A window sees too little of a shared prefix.
        self._shares = options.shared_prefixes and spec.causal and not spec.window
        self._all = self._mask | {"is_causal": False, "window_size_left": -1, "window_size_right": -1}
        self._parts = AttentionParts(advance=Fa3Advance(self), mover=PlaneMover())

    def new_plan(self, limits: Limits) -> Fa3Plan:
        """Buffers for schedules, and for the page table where there is a window. Raises `OutOfMemory`."""
        rows, allocate = limits.max_rows, self._platform.allocate
        table = allocate("workspace", (rows, limits.max_pages), torch.int32) if self._spec.window else None
        cu_rest = allocate("workspace", (rows + 1,), torch.int32)
        stored = allocate("workspace", (rows,), torch.int32)
        rooms = allocate("workspace", (2, SCHEDULE_ROOM * (rows + 4)), torch.int32)
        shared = SharedPrefixes(self._platform, limits) if self._shares and rows >= FEWEST_ROWS else None
        return Fa3Plan(table, cu_rest, stored, rooms, shared)

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Lay out the step's calls. Raises `Unsupported` for features but a tree mask, and for longer leading rows."""
        assert isinstance(plan, Fa3Plan)
        unknown = batch.features - {"tree_mask"}
        if unknown:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(unknown))}")
        if batch.leading and batch.q_len > MAX_Q_LEN:
            raise Unsupported(PART, f"has at most {MAX_Q_LEN} queries in a leading row, not {batch.q_len}")
        plan.batch, plan.view = batch, view
        if plan.shared is not None and batch.leading and batch.q_len == 1:
            plan.shared.look(view, batch.leading)
        longest = int(batch.host_context[batch.leading :].max(initial=1))
        self.lay_out(plan, -(-longest // view.page_tokens), fresh=batch.exact)

    def lay_out(self, plan: Fa3Plan, width: int, *, fresh: bool) -> None:
        """Decide the calls, and compute what depends on lengths from device memory, in the plan's buffers.

        Rows that are not leading have at most `width` pages; `fresh` says that their lengths on the host are exact.
        """
        batch, view = plan.step
        table = view.page_table
        if plan.table is not None:
            table = self._without_freed(plan.table, batch, view)
        plan.leading = _leading(plan, batch, table, view.page_tokens, self._mask)
        plan.rest = _rest(plan, batch, table[:, :width], view.page_tokens, self._mask)
        if plan.leading is not None and batch.tree is not None and batch.q_len > 1:
            self._take_drafts(plan, plan.leading, batch.tree)
        elif plan.leading is not None and plan.shared is not None and batch.q_len == 1:
            self._take_prefixes(plan.leading, plan.shared, view)
        if plan.rest is not None and self._spec.mla is None:
            plan.rest.fresh = fresh and bool((batch.host_q == batch.host_context)[batch.leading :].all())
        for call in plan.calls(Rows.ALL):
            if self._schedule is not None and len(call.context) <= SCHEDULED_ROWS and self._operated(call):
                self._plan_ahead(call)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots, in one launch."""
        assert isinstance(plan, Fa3Plan)
        _, view = plan.step
        store(layer, view.slot_mapping, (k, v))

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        """As the contract says. Rows that have only this step's tokens are attended over `fresh`, without pages."""
        assert isinstance(plan, Fa3Plan)
        if q.stride(-1) != 1:
            q = q.contiguous()
        for call in plan.calls(rows):
            part = slice(call.begin, call.end)
            sums = self._attend(plan, call, layer, q[part], out[part], fresh)
            into = None if lse is None else lse[part]
            if self._spec.sinks:
                assert layer.sinks is not None, "the layer came without its sinks"
                _add_sinks(layer.sinks, out[part], sums, into)
            elif into is not None:
                into.copy_(sums)

    def parts(self) -> AttentionParts:
        """Advance and the slot mover."""
        return self._parts

    def close(self) -> None:
        """Nothing is held."""

    def _operated(self, call: _Rows) -> bool:
        """Whether the operator has a part in it: a window over a tree goes by positions that it does not know."""
        return call.drafts is None or not self._spec.window

    def _take_drafts(self, plan: Fa3Plan, call: _Rows, tree: TreeMask) -> None:
        """Leave the drafts to a kernel of ours: the operator attends to all that was stored before them."""
        batch, _ = plan.step
        call.drafts = Drafts(tree.bits, batch.positions, call.context, call.table, call.page_tokens)
        call.context = torch.sub(call.context, batch.q_len, out=plan.stored[: len(call.context)])
        call.mask = self._all

    def _take_prefixes(self, call: _Rows, shared: SharedPrefixes, view: GroupView) -> None:
        """Leave what rows share to a call of its own, of groups, without a mask."""
        n = len(call.context)
        shared.lay_out(view, call.context)
        call.context, call.table = shared.own_length[:n], shared.own_table[:n, : view.page_table.shape[1]]
        table = shared.table[:, : view.page_table.shape[1]]
        call.prefixes = _Rows(0, n, shared.cu_q, shared.length, table, call.page_tokens, n, call.room, self._all)

    def _attend(
        self,
        plan: Fa3Plan,
        call: _Rows,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        fresh: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """All parts of a call: q, out of its tokens → the log-sums [tokens, heads], without sinks."""
        sums = self._operate(call, layer, q, out, fresh) if self._operated(call) else None
        if call.prefixes is not None and plan.shared is not None and sums is not None:
            other = out.new_empty(out.shape)
            plan.shared.join(
                out, sums, other, self._operate(call.prefixes, layer, plan.shared.gathered(q), other, None)
            )
        if call.drafts is not None:
            sums = join(self._spec, call.drafts, layer, q, out, sums)
        assert sums is not None
        return sums

    def _operate(
        self, call: _Rows, layer: LayerHandle, q: Tensor, out: Tensor, fresh: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """Call the operator: q, out of the call's tokens → the log-sums [tokens, heads]."""
        where: dict[str, object]
        if fresh is not None and call.fresh:
            k, v = (_last_dense(x[call.begin : call.end]) for x in fresh)
            where = {"cu_seqlens_k": call.cu_q, "max_seqlen_k": call.max_q, "seqused_k": None, "page_table": None}
            where["scheduler_metadata"] = None
        else:
            k, v = planes_of(layer)
            where = {"cu_seqlens_k": None, "max_seqlen_k": call.max_k, "seqused_k": call.context}
            where |= {"page_table": call.table, "scheduler_metadata": call.schedule}
        q_v = None
        if self._spec.mla is not None:  # of a latent, which is key and value, the query comes apart
            q_v, q = q[..., : self._spec.mla.rank], q[..., self._spec.mla.rank :]
            k, v = k[:, :, None], v[:, :, None]
        result: list[Tensor] = self._forward(
            q=q,
            k=k,
            v=v,
            q_v=q_v,
            out=out,
            cu_seqlens_q=call.cu_q,
            max_seqlen_q=call.max_q,
            softmax_scale=self._spec.scale,
            softcap=self._spec.soft_cap,
            **where,
            **call.mask,
        )
        return result[1].t()

    def _without_freed(self, into: Tensor, batch: Batch, view: GroupView) -> Tensor:
        """The page table without pages before the window: `into` [most rows, most pages] → [rows, pages].

        The operator loads whole tiles of keys, those before the window too, and a weight of 0 does not stop NaN.
        """
        table, block = view.page_table, 256
        rows, width = table.shape
        visible_kernel[(rows, triton.cdiv(width, block))](
            *(table, into, batch.cu_q, batch.context, width, table.stride(0), into.stride(0)),
            WINDOW=self._spec.window,
            PAGE=view.page_tokens,
            BLOCK=block,
        )
        return into[:rows, :width]

    def _plan_ahead(self, call: _Rows) -> None:
        """Bring the operator's schedule of a call to its place. The same arguments as in the call itself."""
        assert self._schedule is not None
        spec = self._spec
        made = self._schedule(
            batch_size=len(call.context),
            num_heads=spec.q_heads,
            num_heads_k=spec.kv_heads,
            headdim=spec.head_dim if spec.mla is None else spec.mla.rope,
            headdim_v=spec.v_head_dim,
            qkv_dtype=TORCH_DTYPES[spec.dtype],
            page_size=call.page_tokens,
            has_softcap=spec.soft_cap > 0,
            cu_seqlens_q=call.cu_q,
            cu_seqlens_k=None,
            seqused_k=call.context,
            max_seqlen_q=call.max_q,
            max_seqlen_k=call.max_k,
            **call.mask,
        )
        if len(made) > len(call.room):
            raise Unsupported(PART, f"has no room for a schedule of {len(made)} integers", "set schedule = false")
        call.schedule = call.room[: len(made)].copy_(made)


class Fa3Advance(PlanAdvance):
    """Plans the step's calls anew."""

    def __init__(self, backend: Fa3Attention) -> None:
        self._backend = backend

    def advance(self, plan: AttentionPlan) -> None:
        """Schedules and the table follow the device's lengths, of which the host knows no bound but the table's."""
        assert isinstance(plan, Fa3Plan)
        _, view = plan.step
        self._backend.lay_out(plan, view.page_table.shape[1], fresh=False)


def _leading(plan: Fa3Plan, batch: Batch, table: Tensor, page_tokens: int, mask: Mask) -> _Rows | None:
    """The call of leading rows. Its table is as wide as can be, so that a recorded call serves longer rows too."""
    n = batch.leading
    if n == 0:
        return None
    cu_q, context = batch.cu_q[: n + 1], batch.context[:n]
    return _Rows(0, n * batch.q_len, cu_q, context, table[:n], page_tokens, batch.q_len, plan.rooms[0], mask)


def _rest(plan: Fa3Plan, batch: Batch, table: Tensor, page_tokens: int, mask: Mask) -> _Rows | None:
    """The call of all other rows."""
    n, begin = batch.leading, batch.leading * batch.q_len
    if begin == batch.tokens:
        return None
    cu_q = batch.cu_q
    if n:
        cu_q = torch.sub(cu_q[n:], begin, out=plan.cu_rest[: batch.rows - n + 1])
    longest = int(batch.host_q[n:].max())
    return _Rows(begin, batch.tokens, cu_q, batch.context[n:], table[n:], page_tokens, longest, plan.rooms[1], mask)


def _add_sinks(sinks: Tensor, out: Tensor, sums: Tensor, lse: Tensor | None) -> None:
    """A sink takes its share of what was attended without it. Mutates out; writes lse.

    The operator has sinks of its own, in bfloat16 and for up to 64 heads; the contract's are float32.
    """
    out.mul_(torch.sigmoid(sums - sinks)[..., None])
    if lse is not None:
        torch.logaddexp(sums, sinks, out=lse)


def _last_dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _refuse(build: AttentionBuild) -> None:
    """Raise `Unsupported` unless spec and layout are among those declared, `DeviceAbsent` for another GPU."""
    spec = build.group.spec
    reason = why_not(PART, build, declared(DTYPES)) or no_kernel(spec)
    if reason:
        raise Unsupported(PART, reason, INSTEAD)
    device = build.platform.device(build.device_index)
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] != 9:
        raise DeviceAbsent(PART, f"{torch.cuda.get_device_name(device)} is not of the Hopper architecture", INSTEAD)
