"""The pair of one layer group: the live backend serves, and on sampled steps the reference reads the same pages.

The live result is never touched: the reference writes into a tensor of its own, and nothing is stored twice. Knows
when to compare and what to say; how far is too far is compare.py's, what a dump holds record.py's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
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
from srtkit.spec.step_plan import Ints
from srtkit_plugin_attention_shadow import Options
from srtkit_plugin_attention_shadow.compare import LISTED, Finding, errors, findings, limit_of
from srtkit_plugin_attention_shadow.dump import Dump
from srtkit_plugin_attention_shadow.origin import origin_of
from srtkit_plugin_attention_shadow.record import Call, Circumstances, record

PART = "attention:shadow"
_log = logging.getLogger("srtkit.attention.shadow")


@dataclass
class Sample:
    """A step that is compared: its rows with exact lengths, and what was stored last in it."""

    batch: Batch
    view: GroupView
    slots: Ints
    step: int
    stored: tuple[int, Tensor, Tensor] | None = None

    def covered(self, rows: Rows) -> slice:
        """Tokens of a call's rows."""
        middle = int(self.batch.host_q[: self.batch.leading].sum())
        first, last = (middle if rows is Rows.REST else 0), (middle if rows is Rows.LEADING else self.batch.tokens)
        return slice(first, last)


class ShadowPlan(AttentionPlan):
    """A plan of each backend, and the sample if this step is one. `fills` counts steps."""

    def __init__(self, live: AttentionPlan, reference: AttentionPlan) -> None:
        self.live = live
        self.reference = reference
        self.sample: Sample | None = None
        self.fills = 0

    def close(self) -> None:
        """Both plans."""
        self.live.close()
        self.reference.close()
        self.sample = None


class ShadowAttention(AttentionBackend):
    """The live backend, and what it is compared with."""

    def __init__(self, build: AttentionBuild) -> None:
        assert isinstance(build.options, Options)
        given = build.needs or {}
        live, reference = given.get("live"), given.get("reference")
        if not isinstance(live, AttentionBackend) or not isinstance(reference, AttentionBackend):
            cause = "was given no backend to watch" if reference else "was given no reference"
            raise ConfigError(PART, cause, '[attention] shadow = "torch" puts it around the backends that serve')
        self._live, self._reference = live, reference
        self._options = build.options
        spec = build.group.spec
        self._limit = limit_of(spec.dtype, build.options.tolerance)
        self._left = build.options.reports
        self._circumstances = Circumstances(
            build.group,
            build.layout,
            origin_of(live, "attention"),
            origin_of(reference, "attention"),
            origin_of(build.platform, "platform"),
            build.options.tolerance,
            build.options.dump_mib << 20,
        )
        self._compared = 0
        self._began = time.strftime("%m%d-%H%M%S")  # dumps of the run before stay

    def new_plan(self, limits: Limits) -> ShadowPlan:
        """A plan of each."""
        return ShadowPlan(self._live.new_plan(limits), self._reference.new_plan(limits))

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Fill the live plan, and on a sampled step, which waits for the device, the reference's."""
        assert isinstance(plan, ShadowPlan)
        self._live.fill(plan.live, batch, view)
        plan.sample, step = None, plan.fills
        plan.fills += 1
        if self._left == 0 or step % self._options.every:
            return
        if not batch.exact:
            batch = replace(batch, host_context=batch.context.cpu().numpy().astype(np.int32), exact=True)
        self._reference.fill(plan.reference, batch, view)
        plan.sample = Sample(batch, view, batch.slots.cpu().numpy(), step)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """The live backend stores; the reference reads what it stored."""
        assert isinstance(plan, ShadowPlan)
        self._live.store(plan.live, layer, k, v)
        if plan.sample is not None:
            plan.sample.stored = (layer.index, k, v)

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
        """The live result. On a sampled step and layer the reference's is computed beside it and compared."""
        assert isinstance(plan, ShadowPlan)
        self._live.attend(plan.live, layer, q, out, rows=rows, fresh=fresh, lse=lse)
        layers = self._options.layers
        if plan.sample is None or self._left == 0 or (layers and layer.index not in layers):
            return
        wanted = out.clone()
        self._reference.attend(plan.reference, layer, q, wanted, rows=rows)
        self._compare(plan.sample, layer, Call(rows, q, out, wanted))

    def parts(self) -> AttentionParts:
        """None: they take plans, or are not compared."""
        return AttentionParts()

    def close(self) -> None:
        """Both backends, and a line on what was compared."""
        self._live.close()
        self._reference.close()
        found = self._options.reports - self._left
        _log.info("%s: compared %d calls, %d reports", PART, self._compared, found)

    def _compare(self, sample: Sample, layer: LayerHandle, call: Call) -> None:
        """Report what is beyond the limit in the tokens that the call covers."""
        self._compared += 1
        covered = sample.covered(call.rows)
        error = torch.zeros(call.out.shape[:2], dtype=torch.float64)
        error[covered] = errors(call.out[covered], call.wanted[covered])
        if not bool((error > self._limit).any()):
            return
        positions = sample.batch.positions.cpu().numpy()
        found = findings(error, self._limit, sample.batch.host_q, sample.slots, positions)
        if not found:
            return  # in padding rows only
        self._left -= 1
        call = replace(call, stored=self._stored(sample, layer))
        dump = record(self._circumstances, (sample.batch, sample.view), layer, call, found, sample.step)
        _log.warning("%s", self._report(dump, found, layer))

    def _stored(self, sample: Sample, layer: LayerHandle) -> tuple[Tensor, Tensor] | None:
        """This layer's entries of the step, if it stored any."""
        if sample.stored is None or sample.stored[0] != layer.index:
            return None
        return sample.stored[1:]

    def _report(self, dump: Dump, found: list[Finding], layer: LayerHandle) -> str:
        """What is said of a step, after its dump is written."""
        where = self._circumstances
        rows = len({one.row for one in found})
        lines = [
            f"{where.live.plugin} differs from {where.reference.plugin} in layer {layer.index} ({where.group.name})"
        ]
        lines += [f"  {one}" for one in found[:LISTED]]
        if len(found) > LISTED:
            lines.append(f"  … {len(found)} heads of {rows} rows in all")
        if self._options.folder:
            lines.append(f"  {self._saved(dump, Path(self._options.folder))}")
        if self._left == 0:
            lines.append("  that was the last report of this group: nothing is compared any more")
        return "\n".join(lines)

    def _saved(self, dump: Dump, folder: Path) -> str:
        """Write the dump; what to do with it, or why there is none. A full disk must not end the server."""
        path = folder / self._file_name(dump)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            dump.save(path)
        except (OSError, SafetensorError) as error:
            return f"its dump was not written, {error}: name another [attention.options.shadow] folder"
        return f"srt debug replay {path}"

    def _file_name(self, dump: Dump) -> str:
        meta = dump.meta
        number = self._options.reports - self._left
        return f"{meta.live.name}-{self._began}-layer{meta.layer}-step{meta.step}-{number}.safetensors"
