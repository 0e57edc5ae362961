"""What the sampler and the page tables know of running sequences, indexed by row slot. Slot 0 is padding.

Written only here, from a plan's admit, release and page-write columns. Nothing here waits for the device. Knows no
rows, no model and no cache.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.facts import Limits
from srtkit.spec.kv import FULL, Component
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import ADMIT, MAX_STOP_IDS, Column, Ints, StepPlan

Array = np.ndarray[Any, Any]


class DeviceState:
    """Mirrors for `limits.max_rows` slots and slot 0.

    Device tensors at fixed addresses: `page_tables`, one a component, int32 [S, max_pages], of slots [S, 1];
    `temperature`, `top_p`, `min_p` float32 [S]; `top_k` int32 [S]; `seed` int64 [S]. On the host: `host_pages`, the
    page tables' twins; `admitted`, records of ADMIT [S]; `stop_ids` [S, MAX_STOP_IDS], -1 filled.
    """

    def __init__(self, platform: Platform, limits: Limits, components: Sequence[Component] = (FULL,)) -> None:
        n = limits.max_rows + 1

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return platform.allocate("workspace", shape, dtype)

        widths = [limits.max_pages if one.kind == "paged" else 1 for one in components]
        self.page_tables = [zeros(torch.int32, n, width) for width in widths]
        self.temperature, self.top_p, self.min_p = (zeros(torch.float32, n) for _ in range(3))
        self.top_k = zeros(torch.int32, n)
        self.seed = zeros(torch.int64, n)
        self.host_pages: list[Ints] = [np.zeros((n, width), np.int32) for width in widths]
        self.admitted: Array = np.zeros(n, ADMIT)
        self.stop_ids: Ints = np.full((n, MAX_STOP_IDS), -1, np.int32)
        self._platform = platform
        self._uploads: deque[list[Tensor]] = deque([[]], limits.depth + 1)  # of each step that may be under way

    def apply(self, plan: StepPlan) -> None:
        """Take over what changed: released and admitted slots, page writes. The first call of a step."""
        self._uploads.append([])
        if len(released := plan.column(Column.RELEASE)):
            slots = self.upload(released.astype(np.int64))
            for host, table in zip(self.host_pages, self.page_tables, strict=True):
                host[released] = 0
                table.index_fill_(0, slots, 0)
        if len(plan.column(Column.ADMIT)):
            self._admit(plan.column(Column.ADMIT).view(ADMIT), plan.records(Column.STOP_IDS, 2))
        if len(writes := plan.records(Column.PAGE_WRITES, 4)):
            for number, (host, table) in enumerate(zip(self.host_pages, self.page_tables, strict=True)):
                if len(own := writes if len(self.page_tables) == 1 else writes[writes[:, 0] == number]):
                    host[own[:, 1], own[:, 2]] = own[:, 3]
                    self._write(table, own[:, 1].astype(np.int64) * table.shape[1] + own[:, 2], own[:, 3])

    def upload(self, array: Array) -> Tensor:
        """A small array on the device, without waiting for it; the host's copy lives as long as the step may run."""
        host = self._platform.host_buffer(array.shape, torch.from_numpy(np.empty(0, array.dtype)).dtype)
        host.numpy()[:] = array
        self._uploads[-1].append(host)
        return host.to(self.seed.device, non_blocking=True)

    def _write(self, table: Tensor, index: Array, pages: Array) -> None:
        """Pages to places of the table as a whole, in one copy and one launch."""
        words = self.upload(np.concatenate((index.view(np.int32), pages)))
        at = 2 * len(index)
        table.view(-1).index_copy_(0, words[:at].view(torch.int64), words[at:])

    def _admit(self, records: Array, stops: Ints) -> None:
        """Take over records of dtype ADMIT, and (slot, id) pairs of stop ids."""
        slots = records["slot"]
        self.admitted[slots] = records
        self.stop_ids[slots] = -1
        for slot in np.unique(stops[:, 0]):
            ids = stops[stops[:, 0] == slot, 1]
            self.stop_ids[slot, : len(ids)] = ids
        index = self.upload(slots)
        for name, mirror in (
            *(("temperature", self.temperature), ("top_p", self.top_p), ("min_p", self.min_p), ("top_k", self.top_k)),
            ("seed", self.seed),
        ):
            mirror[index] = self.upload(records[name])
