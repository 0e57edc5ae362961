"""What belongs to a plan: buffers at fixed addresses, a step's numbers on the host, and the wrappers that plan by them.

Host memory that a copy may still read is not written again until `depth` further steps have been launched, so numbers
and wrappers, which stage their schedule in pinned memory of their own, are taken in turn from depth + 1 of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import AttentionPlan, Batch, GroupView, Rows
from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform


@dataclass(frozen=True)
class Shape:
    """Leading rows and their queries: what a recorded step is recorded for. `tree`: a mask says what they see."""

    rows: int
    q_len: int
    tree: bool = False


class Numbers:
    """Host numbers of one step, int32, in one pinned block: what the wrappers plan by, and copy to the device.

    By row: `indptr` pages before it, `last` tokens in its last page, `length` keys, `mask` bytes of masks before it.
    Leading rows and the rest each have offsets of their queries that count from 0; so have the pages of the rest.
    """

    def __init__(self, platform: Platform, rows: int) -> None:
        block = platform.host_buffer((7, rows + 1), torch.int32)
        self.indptr, self.rest_indptr, self.leading_cu_q, self.rest_cu_q, self.last, self.length, self.mask = block

    def fill(self, batch: Batch, page: int) -> None:
        """Take over a step with pages of `page` tokens."""
        rows, leading, context = batch.rows, batch.leading, batch.host_context
        pages = -(-context // page)
        indptr, rest_cu_q = self.indptr.numpy(), self.rest_cu_q.numpy()
        indptr[0] = rest_cu_q[0] = 0
        np.cumsum(pages, out=indptr[1 : rows + 1])
        np.cumsum(batch.host_q[leading:], out=rest_cu_q[1 : rows - leading + 1])
        self.rest_indptr.numpy()[: rows - leading + 1] = indptr[leading : rows + 1] - indptr[leading]
        self.leading_cu_q.numpy()[: leading + 1] = np.arange(leading + 1) * batch.q_len
        self.last.numpy()[:rows] = context - (pages - 1) * page
        self.length.numpy()[:rows] = context

    def lay_masks(self, shape: Shape, *, packed: bool) -> int:
        """Decide where the masks of leading rows begin, and how many bytes there are of all of them.

        Where they are not packed a mask has as many bytes as bits, of which the first eighth are used: so the library
        finds those that it was not asked to pack itself.
        """
        bits = shape.q_len * self.length.numpy()[: shape.rows]
        offsets = self.mask.numpy()
        np.cumsum(-(-bits // 8) if packed else bits, out=offsets[1 : shape.rows + 1])
        offsets[0] = 0
        return int(offsets[shape.rows])


@dataclass(frozen=True)
class Call:
    """A wrapper that has planned for tokens [begin, end) of the step."""

    begin: int
    end: int
    wrapper: Any


@dataclass
class Masks:
    """What drafts in trees see. `offsets` int32 [rows + 1]: where the leading rows' masks begin, in bytes.

    `fixed` uint8 [bytes]: those of the first shape of leading rows, made for it; others last for one step.
    """

    offsets: Tensor
    max_context: int
    fixed: Tensor | None = None

    def most(self, shape: Shape) -> int:
        """Bytes of a shape's masks at the longest context."""
        return shape.rows * -(-shape.q_len * self.max_context // 8)


class FlashInferPlan(AttentionPlan):
    """Device buffers: `indptr`, `cu_q` int32 [rows + 1], `pages` int32 [all of them], `last` int32 [rows].

    `schedules` uint8 [2, bytes]: of leading rows, and of the rest. `fixed`: the first shape of leading rows filled in;
    its wrappers read these buffers, for as long as the plan lives.
    """

    def __init__(self, platform: Platform, limits: Limits, schedule_bytes: int) -> None:
        rows, allocate = limits.max_rows, platform.allocate
        self.indptr = allocate("workspace", (rows + 1,), torch.int32)
        self.pages = allocate("workspace", (rows * limits.max_pages,), torch.int32)
        self.last = allocate("workspace", (rows,), torch.int32)
        self.cu_q = allocate("workspace", (rows + 1,), torch.int32)
        self.masks = Masks(allocate("workspace", (rows + 1,), torch.int32), limits.max_context)
        self.schedules = allocate("workspace", (2, schedule_bytes), torch.uint8)
        self.numbers = [Numbers(platform, rows) for _ in range(limits.depth + 1)]
        self.turn = 0
        self.fixed: Shape | None = None
        self.wrappers: dict[str, list[Any]] = {}
        self.batch: Batch | None = None
        self.view: GroupView | None = None
        self.leading: Call | None = None
        self.rest: Call | None = None

    @property
    def step(self) -> tuple[Batch, GroupView]:
        """What was filled in last."""
        assert self.batch is not None and self.view is not None, "attend or store before fill"
        return self.batch, self.view

    def next_numbers(self) -> Numbers:
        """Those that no copy reads any more."""
        self.turn = (self.turn + 1) % len(self.numbers)
        return self.numbers[self.turn]

    def wrapper(self, kind: str, new: Callable[[], Any]) -> Any:
        """This turn's wrapper of a kind. All are made when the first is asked for."""
        if kind not in self.wrappers:
            with torch.inference_mode(mode=False):  # buffers of theirs are written in and out of it
                self.wrappers[kind] = [new() for _ in self.numbers]
        return self.wrappers[kind][self.turn]

    def calls(self, rows: Rows) -> Iterator[Call]:
        """Those that cover `rows`, in order."""
        if self.leading is not None and rows is not Rows.REST:
            yield self.leading
        if self.rest is not None and rows is not Rows.LEADING:
            yield self.rest

    def close(self) -> None:
        """Free the buffers."""
        self.indptr = self.pages = self.last = self.cu_q = self.schedules = torch.empty(0)
        self.masks = Masks(torch.empty(0), 0)
        self.numbers, self.wrappers = [], {}
        self.batch = self.view = self.leading = self.rest = None
