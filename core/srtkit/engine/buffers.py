"""StepPlan → the tensors of one step, in buffers at fixed addresses. The sole uploader.

Everything the host knows goes into one int32 block per step: one copy to the device. Block buffers form
a ring of depth + 1, because the copy of step n may still run while step n + 1 is written. On a device that
shares memory with the host the block is the buffer itself.
"""

from collections.abc import Iterable, Sequence
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
from srtkit.spec.kv import Component
from srtkit.spec.models import ModelInputs
from srtkit.spec.platform import Platform
from srtkit.spec.recurrent import Snapshots
from srtkit.spec.step_plan import Column, Ints, RowFlag, StepPlan


@dataclass
class StepTensors:
    """What a step's programs read, and its sampler. `rows` are the plan's row indices that sample, in order.

    `views` by name of the paged component. `state_slots` int32 [R], 0 for padding rows; None without states.
    """

    batch: Batch
    views: dict[str, GroupView]
    state_slots: Tensor | None
    snapshots: Snapshots | None
    inputs: ModelInputs
    rows: Ints
    sampling: Sampling


@dataclass
class _Rows:
    """Of a paged component, by number: page-table rows in step order, int32 [rows, max_pages], and their numpy twin.

    `column` is that of its slot mapping in the block.
    """

    number: int
    column: str
    device: Tensor
    host: Ints


def _layout(rows: int, tokens: int, slot_mappings: Iterable[str]) -> dict[str, slice]:
    """Where each column stands in the int32 block; they start on cache lines."""
    sizes = {"cu_q": rows + 1, "context": rows, "slots": rows, "logit_rows": rows, "sample_slots": rows}
    sizes |= {"sample_positions": rows, "positions": tokens, "ids": tokens, "state_slots": rows}
    sizes |= dict.fromkeys(slot_mappings, tokens)
    starts = accumulate((-(-size // 16) * 16 for size in sizes.values()), initial=0)
    return {name: slice(start, start + size) for start, (name, size) in zip(starts, sizes.items(), strict=False)}


class StepBuffers:
    """Buffers for the largest step. `build` may be called again when `depth` further steps have been launched."""

    def __init__(self, platform: Platform, limits: Limits, components: Sequence[Component]) -> None:
        # A step has at most max_rows rows, a captured one a row more, for padding.
        rows = limits.max_rows + 1
        paged = {one.name: number for number, one in enumerate(components) if one.kind == "paged"}
        self._at = _layout(rows, limits.max_tokens, [f"slot_mapping.{name}" for name in paged])
        words = (max(column.stop for column in self._at.values()),)
        self._shared = platform.device(0).type == "cpu"
        ring = 1 if self._shared else limits.depth + 1
        self._host = [platform.host_buffer(words, torch.int32) for _ in range(ring)]
        self._device = self._host[0] if self._shared else platform.allocate("workspace", words, torch.int32)
        self._paged: dict[str, _Rows] = {}
        for name, number in paged.items():
            device = platform.allocate("workspace", (rows, limits.max_pages), torch.int32)
            host = device.numpy() if self._shared else np.zeros(device.shape, np.int32)
            self._paged[name] = _Rows(number, f"slot_mapping.{name}", device, host)
        self._state = next((number for number, one in enumerate(components) if one.kind == "slot"), None)
        self._page_size = limits.page_size
        self._turn = 0

    def build(self, plan: StepPlan, state: DeviceState, *, recorded: bool = False) -> StepTensors:
        """Fill the buffers for a plan whose changes `state` has taken over, and return views of them.

        The model's inputs have the key's size. So have the batch and its view where attention is `recorded`; else they
        are the plan's rows and tokens only.
        """
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
        np.maximum(positions, 0, out=positions)
        ids[plan.leading : tokens] = plan.column(Column.PROMPT_IDS)
        ids[tokens:] = 0
        width = max(1, -(-int(context.max(initial=1)) // self._page_size))
        index, offset = positions // self._page_size, positions % self._page_size
        for one in self._paged.values():
            rows = one.host[: key.rows, :width]
            rows[:] = state.host_pages[one.number][slots, :width]
            column(one.column, key.tokens)[:] = rows[row_of_token, index] * self._page_size + offset
        if self._state is not None:
            column("state_slots", key.rows)[:] = state.host_pages[self._state][slots, 0]
        n, host_slots, host_positions = len(sampling), slots[sampling], context[sampling]
        ends = column("logit_rows", key.rows)  # of every row, as a captured step has them; the first are sampled
        ends[:n], ends[n:] = cu_q[1:][sampling] - 1, 0
        column("sample_slots", n)[:] = host_slots
        column("sample_positions", n)[:] = host_positions
        batch, views, inputs = self._upload(plan, state, recorded, width, (n_query, context.copy()))
        at = [self._device[self._at[name]][:n].long() for name in ("sample_slots", "sample_positions")]
        sampler = Sampling(at[0], at[1], host_slots, host_positions)
        state_slots = None if self._state is None else self._device[self._at["state_slots"]][: batch.rows]
        return StepTensors(batch, views, state_slots, _snapshots(plan), inputs, sampling, sampler)

    def _upload(
        self, plan: StepPlan, state: DeviceState, recorded: bool, width: int, host: tuple[Ints, Ints]
    ) -> tuple[Batch, dict[str, GroupView], ModelInputs]:
        key = plan.key
        if not self._shared:
            self._device.copy_(self._host[self._turn - 1], non_blocking=True)

        def column(name: str, n: int) -> Tensor:
            return self._device[self._at[name]][:n]

        slots, ids, positions = column("slots", key.rows), column("ids", key.tokens), column("positions", key.tokens)
        if plan.leading:
            torch.index_select(state.last_token, 0, slots[: plan.leading], out=ids[: plan.leading])
        for one in () if self._shared else self._paged.values():
            torch.index_select(state.page_tables[one.number], 0, slots, out=one.device[: key.rows])
        rows, tokens, leading = plan.rows, plan.tokens, plan.leading
        if recorded:
            rows, tokens, leading = key.rows, key.tokens, key.rows if key.q_len else 0
        batch = Batch(
            rows=rows,
            tokens=tokens,
            leading=leading,
            q_len=1,
            cu_q=column("cu_q", rows + 1),
            context=column("context", rows),
            positions=positions[:tokens],
            slots=slots[:rows],
            host_q=host[0][:rows],
            host_context=host[1][:rows],
        )
        views = {
            name: GroupView(self._page_size, one.device[:rows], column(one.column, tokens), one.host[:rows, :width])
            for name, one in self._paged.items()
        }
        return batch, views, ModelInputs(ids, positions[None], column("logit_rows", key.rows))

    def _padded(self, plan: StepPlan) -> tuple[Ints, Ints, Ints]:
        """Slots, query lengths and starts with padding rows, which see one token: slot 0, what is over on the last."""
        slots, n_query, start = (plan.column(c) for c in (Column.ROW_SLOT, Column.ROW_N_QUERY, Column.ROW_START))
        extra_rows, extra_tokens = plan.key.rows - len(slots), plan.key.tokens - plan.tokens
        if extra_rows == 0:
            return slots, n_query, start
        padding = np.full(extra_rows, plan.key.q_len, np.int32)
        padding[-1] = extra_tokens - padding[:-1].sum()
        zeros = np.zeros(extra_rows, np.int32)
        return np.concatenate((slots, zeros)), np.concatenate((n_query, padding)), np.concatenate((start, 1 - padding))


def _snapshots(plan: StepPlan) -> Snapshots | None:
    """The states that the plan wants copied, on the host."""
    wanted = plan.records(Column.SNAPSHOTS, 3)
    return Snapshots(*torch.from_numpy(wanted.T.copy())) if len(wanted) else None
