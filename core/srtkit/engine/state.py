"""Device mirrors of running sequences, indexed by row slot, at fixed addresses. Slot 0 is padding.

Written only here (from a plan's admit, release and page-write columns) and by the sampler
(`last_token`). Knows no rows, no model and no cache.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.facts import Limits
from srtkit.spec.platform import Platform
from srtkit.spec.step_plan import ADMIT, MAX_STOP_IDS, Column, Ints, StepPlan


class DeviceState:
    """Mirrors for `limits.max_rows` slots and slot 0.

    Device tensors: `last_token` int32 [S]; `page_table` int32 [S, max_pages]; `temperature`, `top_p`,
    `min_p` float32 [S]; `top_k`, `min_position` int32 [S]; `seed` int64 [S]; `stop_ids` int32
    [S, MAX_STOP_IDS], -1 filled. `host_pages` is the page table's numpy twin; `logprobs` numpy [S].
    """

    def __init__(self, platform: Platform, limits: Limits) -> None:
        n = limits.max_rows + 1

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return platform.allocate("workspace", shape, dtype)

        self.last_token = zeros(torch.int32, n)
        self.page_table = zeros(torch.int32, n, limits.max_pages)
        self.temperature, self.top_p, self.min_p = (zeros(torch.float32, n) for _ in range(3))
        self.top_k = zeros(torch.int32, n)
        self.min_position = zeros(torch.int32, n)
        self.seed = zeros(torch.int64, n)
        self.stop_ids = zeros(torch.int32, n, MAX_STOP_IDS).fill_(-1)
        self.host_pages: Ints = np.zeros((n, limits.max_pages), np.int32)
        self.logprobs: Ints = np.full(n, -1, np.int32)

    def apply(self, plan: StepPlan) -> None:
        """Take over what changed: released and admitted slots, page writes."""
        if len(released := plan.column(Column.RELEASE)):
            self.host_pages[released] = 0
            self.page_table[torch.from_numpy(released.astype(np.int64)).to(self.page_table.device)] = 0
        if len(plan.column(Column.ADMIT)):
            self._admit(plan.column(Column.ADMIT).view(ADMIT), plan.records(Column.STOP_IDS, 2))
        writes = plan.records(Column.PAGE_WRITES, 4)
        if len(writes):
            self.host_pages[writes[:, 1], writes[:, 2]] = writes[:, 3]
            device = torch.from_numpy(writes.astype(np.int64)).to(self.page_table.device)
            self.page_table[device[:, 1], device[:, 2]] = device[:, 3].int()

    def _admit(self, records: np.ndarray[Any, Any], stops: Ints) -> None:
        """Take over records of dtype ADMIT, and (slot, id) pairs of stop ids."""
        device = self.seed.device

        def column(name: str) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(records[name])).to(device)

        slots = column("slot").long()
        for name, mirror in (
            *(("temperature", self.temperature), ("top_p", self.top_p), ("min_p", self.min_p), ("top_k", self.top_k)),
            *(("seed", self.seed), ("min_position", self.min_position)),
        ):
            mirror[slots] = column(name)
        self.logprobs[records["slot"]] = records["logprobs"]
        self.stop_ids[slots] = -1
        for slot in np.unique(stops[:, 0]):
            ids = stops[stops[:, 0] == slot, 1]
            self.stop_ids[int(slot), : len(ids)] = torch.from_numpy(ids.copy()).to(device)
