"""StepPlan → the tensors of one step, in buffers at fixed addresses. The sole uploader.

Everything the host knows goes into one int32 block per step: one copy to the device. Block buffers form
a ring of depth + 1, because the copy of step n may still run while step n + 1 is written. On a device that
shares memory with the host the block is the buffer itself.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.sampler import Sampling
from srtkit.engine.state import DeviceState
from srtkit.spec.attention import Batch, GroupView
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.models import ModelInputs
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import Column, Ints, RowFlag, StepPlan


@dataclass
class StepTensors:
    """What a step's programs read, and its sampler. `rows` are the plan's row indices that sample, in order."""

    batch: Batch
    view: GroupView
    inputs: ModelInputs
    rows: Ints
    sampling: Sampling


def _layout(rows: int, tokens: int) -> dict[str, slice]:
    """Where each column stands in the int32 block; they start on cache lines."""
    sizes = {"cu_q": rows + 1, "context": rows, "slots": rows, "logit_rows": rows, "sample_slots": rows}
    sizes |= {"sample_positions": rows, "positions": tokens, "ids": tokens, "slot_mapping": tokens}
    starts = accumulate((-(-size // 16) * 16 for size in sizes.values()), initial=0)
    return {name: slice(start, start + size) for start, (name, size) in zip(starts, sizes.items(), strict=False)}


class StepBuffers:
    """Buffers for the largest step. `build` may be called again when `depth` further steps have been launched."""

    def __init__(self, platform: Platform, limits: Limits) -> None:
        # A step has at most max_rows rows; capture keys pad within it.
        self._at = _layout(limits.max_rows, limits.max_tokens)
        words = (max(column.stop for column in self._at.values()),)
        self._shared = platform.device(0).type == "cpu"
        ring = 1 if self._shared else limits.depth + 1
        self._host = [platform.host_buffer(words, torch.int32) for _ in range(ring)]
        self._device = self._host[0] if self._shared else platform.allocate("workspace", words, torch.int32)
        self._page_rows = platform.allocate("workspace", (limits.max_rows, limits.max_pages), torch.int32)
        self._host_rows: Ints = self._page_rows.numpy() if self._shared else np.zeros(self._page_rows.shape, np.int32)
        self._page_size = limits.page_size
        self._turn = 0

    def build(self, plan: StepPlan, state: DeviceState) -> StepTensors:
        """Fill the buffers for a plan whose changes `state` has taken over, and return views of them."""
        flags = plan.column(Column.ROW_FLAGS)
        if not (flags & RowFlag.EXACT).all():
            raise Unsupported("engine", "a row without an exact start (speculation) is not implemented")
        key, tokens = plan.key, plan.tokens
        slots, n_query, start = self._padded(plan)
        sampling = np.flatnonzero(flags & RowFlag.SAMPLE).astype(np.int32)
        block = self._host[self._turn].numpy()
        self._turn = (self._turn + 1) % len(self._host)

        def column(name: str, n: int) -> Ints:
            return block[self._at[name]][:n]

        cu_q, context = column("cu_q", key.rows + 1), column("context", key.rows)
        positions, ids = column("positions", key.tokens), column("ids", key.tokens)
        cu_q[0] = 0
        np.cumsum(n_query, out=cu_q[1:])
        np.add(start, n_query, out=context)
        column("slots", key.rows)[:] = slots
        row_of_token = np.repeat(np.arange(key.rows), n_query)
        positions[:] = np.arange(key.tokens) - cu_q[row_of_token] + start[row_of_token]
        ids[plan.leading : tokens] = plan.column(Column.PROMPT_IDS)
        ids[tokens:] = 0
        width = max(1, -(-int(context.max(initial=1)) // self._page_size))
        rows = self._host_rows[: key.rows, :width]
        rows[:] = state.host_pages[slots, :width]
        page = rows[row_of_token, positions // self._page_size]
        column("slot_mapping", key.tokens)[:] = page * self._page_size + positions % self._page_size
        # Rows of equal length may be captured, so they all have logits, padding rows too; the first are sampled.
        ends = np.arange(key.rows) if key.q_len else sampling
        column("logit_rows", len(ends))[:] = cu_q[1:][ends] - 1
        n, host_slots, host_positions = len(sampling), slots[sampling], context[sampling]
        column("sample_slots", n)[:] = host_slots
        column("sample_positions", n)[:] = host_positions
        batch, view, inputs = self._upload(plan, state, len(ends), width, (n_query, context.copy()))
        at = [self._device[self._at[name]][:n].long() for name in ("sample_slots", "sample_positions")]
        return StepTensors(batch, view, inputs, sampling, Sampling(at[0], at[1], host_slots, host_positions))

    def _upload(
        self, plan: StepPlan, state: DeviceState, logits: int, width: int, host: tuple[Ints, Ints]
    ) -> tuple[Batch, GroupView, ModelInputs]:
        key = plan.key
        if not self._shared:
            self._device.copy_(self._host[self._turn - 1], non_blocking=True)

        def column(name: str, n: int) -> Tensor:
            return self._device[self._at[name]][:n]

        slots, ids = column("slots", key.rows), column("ids", key.tokens)
        if plan.leading:
            torch.index_select(state.last_token, 0, slots[: plan.leading], out=ids[: plan.leading])
        if not self._shared:
            torch.index_select(state.page_table, 0, slots, out=self._page_rows[: key.rows])
        batch = Batch(
            rows=key.rows,
            tokens=key.tokens,
            leading=key.rows if key.q_len else plan.leading,
            q_len=1,
            cu_q=column("cu_q", key.rows + 1),
            context=column("context", key.rows),
            positions=column("positions", key.tokens),
            slots=slots,
            host_q=host[0],
            host_context=host[1],
        )
        view = GroupView(
            page_tokens=self._page_size,
            page_table=self._page_rows[: key.rows],
            slot_mapping=column("slot_mapping", key.tokens),
            host_pages=self._host_rows[: key.rows, :width],
        )
        return batch, view, ModelInputs(ids, batch.positions[None], column("logit_rows", logits))

    def _padded(self, plan: StepPlan) -> tuple[Ints, Ints, Ints]:
        """Slots, query lengths and starts with padding rows: slot 0, start 0, the surplus tokens on the last."""
        slots, n_query, start = (plan.column(c) for c in (Column.ROW_SLOT, Column.ROW_N_QUERY, Column.ROW_START))
        extra_rows, extra_tokens = plan.key.rows - len(slots), plan.key.tokens - plan.tokens
        if extra_rows == 0:
            return slots, n_query, start
        padding = np.full(extra_rows, plan.key.q_len or 1, np.int32)
        padding[-1] = extra_tokens - padding[:-1].sum()
        zeros = np.zeros(extra_rows, np.int32)
        return np.concatenate((slots, zeros)), np.concatenate((n_query, padding)), np.concatenate((start, zeros))
