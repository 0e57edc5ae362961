"""StepPlan → the tensors of one step, in buffers at fixed addresses. The sole uploader.

Everything the host knows goes into one int32 block per step: one copy to the device. Block buffers form
a ring of depth + 1, because the copy of step n may still run while step n + 1 is written. On a device that
shares memory with the host the block is the buffer itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.sampler import Sampling
from srtkit.engine.state import Array, DeviceState
from srtkit.spec.attention import Batch, GroupView
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.kv import Component
from srtkit.spec.models import ModelInputs
from srtkit.spec.platform import Platform
from srtkit.spec.recurrent import Snapshots
from srtkit.spec.step_plan import Column, Ints, RowFlag, StepPlan

LINE = 16
"""Words of a cache line, where columns begin."""
KNOWN = 256
"""Sizes of steps, in one buffer of the ring each, whose columns are kept."""


@dataclass
class StepTensors:
    """What a step's programs read, and its sampler. `rows` are the plan's row indices that sample, in order.

    `views` by name of the paged component. `state_slots` int32 [R], 0 for padding rows; None without states.
    `source` int32 [T]: where each input id stands among `StepBuffers`' words.
    """

    batch: Batch
    views: dict[str, GroupView]
    state_slots: Tensor | None
    snapshots: Snapshots | None
    inputs: ModelInputs
    source: Tensor
    rows: Array
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


@dataclass
class _Columns:
    """A block for steps of one size, on the device and in one buffer of the ring, and its columns there by name.

    `given` is where the ids begin that the host knows.
    """

    device: dict[str, Tensor]
    host: dict[str, Ints]
    block: Tensor
    staged: Tensor
    given: int
    inputs: ModelInputs


class StepBuffers:
    """Buffers for the largest step. `build` may be called again when `depth` further steps have been launched.

    The words on the device are the block and, behind the largest, the last token of every row slot: an input id is one
    of them.
    """

    def __init__(self, platform: Platform, limits: Limits, components: Sequence[Component]) -> None:
        # A step has at most max_rows rows, a captured one a row more, for padding.
        rows = limits.max_rows + 1
        paged = {one.name: number for number, one in enumerate(components) if one.kind == "paged"}
        mappings = [f"slot_mapping.{name}" for name in paged]
        self._shared = platform.device(0).type == "cpu"
        self._tail = _layout(mappings, rows, limits.max_tokens)["end"].start
        words = (self._tail + rows,)
        ring = 1 if self._shared else limits.depth + 1
        self._host = [platform.host_buffer(words, torch.int32) for _ in range(ring)]
        self._words = self._host[0] if self._shared else platform.allocate("workspace", words, torch.int32)
        self.last_token = self._words[self._tail :].zero_()
        self._ids = platform.allocate("workspace", (limits.max_tokens,), torch.int32)
        self._columns = lru_cache(KNOWN)(partial(_columns, mappings, self._words, self._ids, self._host))
        self._paged: dict[str, _Rows] = {}
        for name, number in paged.items():
            device = platform.allocate("workspace", (rows, limits.max_pages), torch.int32)
            host = device.numpy() if self._shared else np.zeros(device.shape, np.int32)
            self._paged[name] = _Rows(number, f"slot_mapping.{name}", device, host)
        # Of the paged components' rows on the host: whose tables stand there, -1 for nobody's, and how much of them.
        self._slots, self._width, self._changed = np.full(rows, -1, np.intp), 0, np.zeros(rows, np.bool_)
        self._state = next((number for number, one in enumerate(components) if one.kind == "slot"), None)
        self._page_size, self._max_pages = limits.page_size, limits.max_pages
        self._turn = 0

    def build(self, plan: StepPlan, state: DeviceState, *, recorded: bool = False) -> StepTensors:
        """Fill the buffers for a plan whose changes `state` has taken over, and return views of them.

        The model's inputs have the key's size. So have the batch and its view where attention is `recorded`; else they
        are the plan's rows and tokens only. The ids are there after `gather`.
        """
        flags = plan.column(Column.ROW_FLAGS)
        if not (flags & int(RowFlag.EXACT)).all():  # plain numbers: numpy takes microseconds to look through an Enum
            raise Unsupported("engine", "a row without an exact start (speculation) is not implemented")
        key, tokens, leading = plan.key, plan.tokens, plan.leading
        self._turn = (self._turn + 1) % len(self._host)
        columns = self._columns(key.rows, key.tokens, self._turn)
        device, host = columns.device, columns.host
        slots, n_query, start = self._padded(plan)
        host["slots"][:] = slots
        context = start + n_query
        host["context"][:] = context
        cu_q, positions = host["cu_q"], host["positions"]
        cu_q[0] = 0
        np.add.accumulate(n_query, out=cu_q[1:])
        of_token = slots
        if key.q_len == 1:
            positions[:] = start
        else:
            row = np.repeat(np.arange(key.rows), n_query)
            np.maximum(np.arange(key.tokens) + (start - cu_q[:-1])[row], 0, out=positions)
            of_token = slots[row]
        host["given"][leading:tokens] = plan.column(Column.PROMPT_IDS)
        host["given"][tokens:] = 0
        host["source"][:leading] = self._tail + slots[:leading]
        host["source"][leading:] = np.arange(columns.given + leading, columns.given + key.tokens)
        width = max(1, -(-int(context.max(initial=1)) // self._page_size))
        self._copy_tables(plan, state, slots, width)
        index = (positions // self._page_size).astype(np.intp)
        for one in self._paged.values():
            host[one.column][:] = (state.host_pages[one.number][of_token, index] - index) * self._page_size + positions
        if self._state is not None:
            host["state_slots"][:] = state.host_pages[self._state][slots, 0]
        rows = (flags & int(RowFlag.SAMPLE)).nonzero()[0]
        n, ends = len(rows), host["logit_rows"]  # of every row, as a captured step has them; the first are sampled
        ends[:n], ends[n:] = cu_q[1:][rows] - 1, 0
        sampler = Sampling(device["sample_slots"], device["sample_positions"], slots[rows], context[rows])
        sample_slots = host["sample_slots"].view(np.int64)
        sample_slots[:n], sample_slots[n:] = sampler.host_slots, 0
        host["sample_positions"][:n] = sampler.host_positions
        batch, views = self._upload(plan, state, recorded, width, columns, (n_query, context))
        state_slots = None if self._state is None else device["state_slots"][: batch.rows]
        return StepTensors(batch, views, state_slots, _snapshots(plan), columns.inputs, device["source"], rows, sampler)

    def gather(self, step: StepTensors) -> None:
        """Look up a step's input ids, when the tokens of the step before are known."""
        torch.index_select(self._words, 0, step.source, out=step.inputs.ids)

    def _upload(
        self, plan: StepPlan, state: DeviceState, recorded: bool, width: int, columns: _Columns, host: tuple[Ints, Ints]
    ) -> tuple[Batch, dict[str, GroupView]]:
        key, column = plan.key, columns.device
        if not self._shared:
            columns.block.copy_(columns.staged, non_blocking=True)
            for one in self._paged.values():
                torch.index_select(state.page_tables[one.number], 0, column["slots"], out=one.device[: key.rows])
        whole = key.rows, key.tokens, key.rows if key.q_len else 0
        rows, tokens, leading = whole if recorded else (plan.rows, plan.tokens, plan.leading)
        batch = Batch(
            rows=rows,
            tokens=tokens,
            leading=leading,
            q_len=1,
            cu_q=column["cu_q"][: rows + 1],
            context=column["context"][:rows],
            positions=column["positions"][:tokens],
            slots=column["slots"][:rows],
            host_q=host[0][:rows],
            host_context=host[1][:rows],
        )
        views = {
            name: GroupView(self._page_size, one.device[:rows], column[one.column][:tokens], one.host[:rows, :width])
            for name, one in self._paged.items()
        }
        return batch, views

    def _copy_tables(self, plan: StepPlan, state: DeviceState, slots: Array, width: int) -> None:
        """The first `width` pages of these slots to the rows on the host, but for rows that hold them already.

        Those have the slot that they had in the step before, and the plan, like all before it, writes no page of it.
        """
        width = min(1 << (width - 1).bit_length(), self._max_pages)  # seldom another one: all rows are copied then
        if width != self._width:
            self._width, self._slots[:] = width, -1
        self._changed[plan.records(Column.PAGE_WRITES, 4)[:, 1]] = True
        stale = ((self._slots[: len(slots)] != slots) | self._changed[slots]).nonzero()[0]
        for one in self._paged.values() if len(stale) else ():
            one.host[stale, :width] = state.host_pages[one.number][slots[stale], :width]
        self._slots[: len(slots)], self._slots[len(slots) :], self._changed[:] = slots, -1, False

    def _padded(self, plan: StepPlan) -> tuple[Array, Ints, Ints]:
        """Slots, query lengths and starts with padding rows, which see one token: slot 0, what is over on the last."""
        slots, n_query, start = (plan.column(c) for c in (Column.ROW_SLOT, Column.ROW_N_QUERY, Column.ROW_START))
        extra_rows = plan.key.rows - len(slots)
        if extra_rows == 0:
            return slots.astype(np.intp), n_query, start
        padding = np.full(extra_rows, plan.key.q_len, np.int32)
        padding[-1] = plan.key.tokens - plan.tokens - padding[:-1].sum()
        zeros = np.zeros(extra_rows, np.intp)
        return np.concatenate((slots, zeros)), np.concatenate((n_query, padding)), np.concatenate((start, 1 - padding))


def _layout(mappings: Sequence[str], rows: int, tokens: int) -> dict[str, slice]:
    """Where each column of such a step stands in the block, and its "end"."""
    sizes = {"cu_q": rows + 1, "context": rows, "slots": rows, "logit_rows": rows, "sample_slots": 2 * rows}
    sizes |= {"sample_positions": rows, "state_slots": rows}
    sizes |= dict.fromkeys(("positions", "given", "source", *mappings), tokens) | {"end": 0}
    starts = accumulate((-(-size // LINE) * LINE for size in sizes.values()), initial=0)
    return {name: slice(start, start + size) for start, (name, size) in zip(starts, sizes.items(), strict=False)}


def _columns(
    mappings: Sequence[str], words: Tensor, ids: Tensor, ring: Sequence[Tensor], rows: int, tokens: int, turn: int
) -> _Columns:
    """The columns of such a step. Touches one buffer of the ring only: the device may still read the others."""
    at, twin = _layout(mappings, rows, tokens), ring[turn].numpy()
    end = at.pop("end").start
    device = {name: words[one] for name, one in at.items()}
    device["sample_slots"] = device["sample_slots"].view(torch.int64)
    host = {name: twin[one] for name, one in at.items()}
    inputs = ModelInputs(ids[:tokens], device["positions"][None], device["logit_rows"])
    return _Columns(device, host, words[:end], ring[turn][:end], at["given"].start, inputs)


def _snapshots(plan: StepPlan) -> Snapshots | None:
    """The states that the plan wants copied, on the host."""
    wanted = plan.records(Column.SNAPSHOTS, 3)
    return Snapshots(*torch.from_numpy(wanted.T.copy())) if len(wanted) else None
