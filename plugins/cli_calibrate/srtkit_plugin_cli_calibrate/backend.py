"""The backend that measures: another one computes, and the largest magnitudes of what it is given to store are kept.

Knows nothing of scales and FP8. Tokens of padding rows and of the warm-up, both of row slot 0, are not counted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.errors import ConfigError
from srtkit.spec.facts import Limits
from srtkit_plugin_cli_calibrate.ranges import Options

PART = "attention:calibrate"


class RangesPlan(AttentionPlan):
    """A plan of the backend that computes. `padding`: bool [T], the step's tokens that do not count."""

    padding: Tensor

    def __init__(self, live: AttentionPlan) -> None:
        self.live = live

    def close(self) -> None:
        """The plan inside."""
        self.live.close()


class RangesAttention(AttentionBackend):
    """`largest` float32 [layers, 2] on the device: of keys and values, in the order of the group's layers."""

    def __init__(self, build: AttentionBuild) -> None:
        assert isinstance(build.options, Options)
        live = (build.needs or {}).get("live")
        if not isinstance(live, AttentionBackend):
            raise ConfigError(PART, "was given no backend to compute with", "run it through `srt calibrate kv`")
        self._live = live
        self._group = build.group
        self._folder = build.options.folder
        self._row = {layer: row for row, layer in enumerate(build.group.layers)}
        device = build.platform.device(build.device_index)
        self.largest = torch.zeros(len(self._row), 2, dtype=torch.float32, device=device)

    def new_plan(self, limits: Limits) -> RangesPlan:
        """One over the other backend's."""
        return RangesPlan(self._live.new_plan(limits))

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Fill the plan inside, and mark the tokens that count."""
        assert isinstance(plan, RangesPlan)
        self._live.fill(plan.live, batch, view)
        lengths = torch.from_numpy(batch.host_q).to(batch.slots.device)
        plan.padding = (batch.slots == 0).repeat_interleave(lengths)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Store, and keep the largest magnitudes; k [T, …], v [T, …]."""
        assert isinstance(plan, RangesPlan)
        self._live.store(plan.live, layer, k, v)
        found = [x.abs().flatten(1).amax(1).masked_fill(plan.padding, 0).amax().float() for x in (k, v)]
        row = self.largest[self._row[layer.index]]
        torch.maximum(row, torch.stack(found), out=row)

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
        """The other backend's."""
        assert isinstance(plan, RangesPlan)
        self._live.attend(plan.live, layer, q, out, rows=rows, fresh=fresh, lse=lse)

    def parts(self) -> AttentionParts:
        """None: they take plans."""
        return AttentionParts()

    def close(self) -> None:
        """Close the other backend, and write layer → largest key, largest value to a file of the group's name.

        With MLA both are those of latent and rope part together, which share a scale.
        """
        self._live.close()
        if not self._folder:
            return
        largest = self.largest.cpu()
        if self._group.spec.mla is not None:
            largest = largest.amax(1, keepdim=True).expand(-1, 2)
        pairs = dict(zip(self._group.layers, largest.tolist(), strict=True))
        Path(self._folder, f"{self._group.name}.json").write_bytes(msgspec.json.encode(pairs))
