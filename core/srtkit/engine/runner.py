"""The model runner: a StepPlan in, sampled tokens out. Owns the device state of one rank.

It decides nothing: shapes, rows and pages come from the plan. Per step: take over what changed, upload
one block, fill the attention plans, run the program through the graph runner the plan's key names, sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.buffers import StepBuffers, StepTensors
from srtkit.engine.sampler import log_probabilities, sample
from srtkit.engine.state import DeviceState
from srtkit.scheduler.scheduler import StepOutput
from srtkit.spec.attention import AttentionBackend, AttentionPlan, LayerGroup, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.layers import Binding, bound
from srtkit.spec.models import Model
from srtkit.spec.platform import Event, Platform
from srtkit.spec.step_plan import Column, RowFlag, StepFlag, StepKey, StepPlan


@dataclass
class BoundGroup:
    """A layer group with its backend, the plan that is filled each step, and its layers' handles."""

    group: LayerGroup
    backend: AttentionBackend
    plan: AttentionPlan
    handles: Sequence[LayerHandle]


class TargetProgram(Program):
    """The target model over the current step's tensors."""

    def __init__(self, model: Model, groups: Sequence[BoundGroup], n_layers: int) -> None:
        self._model = model
        self._groups = groups
        self._table: list[Binding | None] = [None] * n_layers
        for bound_group in groups:
            for handle in bound_group.handles:
                self._table[handle.index] = Binding(bound_group.backend, bound_group.plan, handle)
        self.step: StepTensors | None = None

    def before(self, key: StepKey) -> None:
        """Fill every group's plan."""
        step = self.step
        assert step is not None
        for one in self._groups:
            one.backend.fill(one.plan, step.batch, step.view)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """Run the model; outputs "logits" and "hidden"."""
        step = self.step
        assert step is not None
        with bound(self._table):
            output = self._model.run(step.inputs)
        return {"logits": output.logits, "hidden": output.hidden}

    def cuts(self) -> frozenset[str]:
        """The attention operator."""
        return frozenset({"srtkit::attend"})


@dataclass
class Handle:
    """A launched step: its plan, the ids on their way to the host, and the mark to wait for."""

    plan: StepPlan
    rows: np.ndarray[tuple[int], np.dtype[np.int32]]
    ids: Tensor
    logits: Tensor | None
    done: Event


class ModelRunner:
    """One rank's device work. One thread."""

    def __init__(
        self,
        platform: Platform,
        device: torch.device,
        limits: Limits,
        program: TargetProgram,
        runners: Mapping[StepKey, GraphRunner],
        eager: GraphRunner,
    ) -> None:
        self.platform = platform
        self.state = DeviceState(platform, limits)
        self._buffers = StepBuffers(platform, device, limits)
        self._program = program
        self._runners = runners
        self._eager = eager
        self._ring = [platform.host_buffer((limits.max_rows,), torch.int32) for _ in range(limits.depth + 1)]
        self.eager_steps = 0

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Handle:
        """Launch a step. Mutates KV pages and the device state; does not wait for the device."""
        self.state.apply(plan)
        step = self._program.step = self._buffers.build(plan, self.state)
        runner = self._runners.get(plan.key, self._eager)
        self.eager_steps += runner is self._eager
        outputs = runner.run(self._program, plan.key)
        n = len(step.sampling)
        logits = outputs["logits"][:n]
        ids = self._sample(plan, step, logits)
        host = self._ring[plan.step % len(self._ring)][:n]
        host.copy_(ids, non_blocking=True)
        done = self.platform.new_event()
        done.record()
        kept = logits if plan.flags & StepFlag.LOGPROBS else None
        return Handle(plan, step.sampling, host, kept, done)

    def _sample(self, plan: StepPlan, step: StepTensors, logits: Tensor) -> Tensor:
        if len(step.sampling) == 0:
            return step.batch.slots[:0]
        if plan.flags & StepFlag.GREEDY:
            ids = logits.argmax(dim=-1).int()
        else:
            if plan.flags & StepFlag.LOGPROBS:
                logits = logits.clone()  # suppression must not show in reported log-probabilities
            ids = sample(logits, step.sample_slots, step.sample_positions, self.state)
        self.state.last_token[step.sample_slots] = ids
        return ids

    @torch.inference_mode()
    def collect(self, handle: Handle) -> StepOutput:
        """Wait for that step only, and bring its tokens to the host."""
        handle.done.synchronize(timeout=300.0)
        plan = handle.plan
        ids = np.full(plan.rows, -1, np.int32)
        ids[handle.rows] = handle.ids.numpy()
        output = StepOutput(ids)
        if handle.logits is not None:
            flags, slots = plan.column(Column.ROW_FLAGS), plan.column(Column.ROW_SLOT)
            for i, row in enumerate(handle.rows.tolist()):
                if flags[row] & RowFlag.LOGPROBS:
                    n_top = int(self.state.logprobs[slots[row]])
                    output.logprobs[row] = log_probabilities(handle.logits[i], handle.ids[i], n_top)
        return output

    def warm_up(self, key: StepKey) -> None:
        """Run a step of padding rows, so that the first request does not pay for kernel selection."""
        rows, n_query = key.rows, key.tokens // key.rows
        flags = RowFlag.EXACT | RowFlag.SAMPLE | (RowFlag.PROMPT if n_query > 1 else RowFlag(0))
        columns = {
            Column.ROW_SLOT: np.zeros(rows, np.int32),
            Column.ROW_N_QUERY: np.full(rows, n_query, np.int32),
            Column.ROW_START: np.zeros(rows, np.int32),
            Column.ROW_FLAGS: np.full(rows, flags, np.int32),
            Column.PROMPT_IDS: np.zeros(key.tokens if n_query > 1 else 0, np.int32),
        }
        leading = rows if n_query == 1 else 0
        key = StepKey(rows, rows * n_query, key.q_len)
        self.collect(self.forward(StepPlan(0, key, int(StepFlag.GREEDY), leading, columns)))
        self.eager_steps = 0
