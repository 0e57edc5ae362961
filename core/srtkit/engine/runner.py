"""The model runner: a StepPlan in, sampled tokens out. Owns the device state of one rank.

It decides nothing: shapes, rows and pages come from the plan. Per step: take over what changed, upload
one block, fill the attention plans, run the program through the graph runner the plan's key names, sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.buffers import StepBuffers, StepTensors
from srtkit.engine.sampler import log_probabilities, sample
from srtkit.engine.state import DeviceState
from srtkit.scheduler.scheduler import StepOutput
from srtkit.spec.attention import AttentionBackend, AttentionPlan, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.layers import Binding, bound
from srtkit.spec.models import Model
from srtkit.spec.platform import Event, Platform
from srtkit.spec.step_plan import Column, Ints, RowFlag, StepFlag, StepKey, StepPlan

Runners = Mapping[GraphRunner, Sequence[StepKey]]


@dataclass
class BoundGroup:
    """A layer group's backend, and its layers' handles."""

    backend: AttentionBackend
    handles: Sequence[LayerHandle]


class TargetProgram(Program):
    """The target model over the current step's tensors: `step` of `key`, which the runner sets before each run.

    While steps are captured nobody does: `stage` makes one of padding rows. A captured key has attention plans
    of its own, all others share one a group.
    """

    step: StepTensors
    key: StepKey | None = None
    stage: Callable[[StepKey], StepTensors]

    def __init__(self, model: Model, groups: Sequence[BoundGroup], limits: Limits) -> None:
        self._model = model
        self._groups = groups
        self._limits = limits
        self._eager = self._bind(limits)
        self._captured: dict[StepKey, tuple[list[AttentionPlan], list[Binding | None]]] = {}

    def before(self, key: StepKey) -> None:
        """Fill every group's plan."""
        if key != self.key:
            self.step, self.key = self.stage(key), key
            self._captured[key] = self._bind(replace(self._limits, max_rows=key.rows, max_tokens=key.tokens))
        plans, _ = self._captured.get(key, self._eager)
        for one, plan in zip(self._groups, plans, strict=True):
            one.backend.fill(plan, self.step.batch, self.step.view)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """Run the model; outputs "logits" and "hidden"."""
        _, table = self._captured.get(key, self._eager)
        with bound(table):
            output = self._model.run(self.step.inputs)
        return {"logits": output.logits, "hidden": output.hidden}

    def close(self) -> None:
        """Free plans and backends."""
        for plan in (plan for plans, _ in (self._eager, *self._captured.values()) for plan in plans):
            plan.close()
        for one in self._groups:
            one.backend.close()

    def _bind(self, limits: Limits) -> tuple[list[AttentionPlan], list[Binding | None]]:
        """New plans for steps up to `limits`, and what every layer's handle stands for with them."""
        plans = [one.backend.new_plan(limits) for one in self._groups]
        bindings = {
            handle.index: Binding(one.backend, plan, handle)
            for one, plan in zip(self._groups, plans, strict=True)
            for handle in one.handles
        }
        return plans, [bindings.get(index) for index in range(max(bindings) + 1)]

    def cuts(self) -> frozenset[str]:
        """The attention operator."""
        return frozenset({"srtkit::attend"})


@dataclass
class Handle:
    """A launched step: its plan, the ids on their way to the host, and the mark to wait for."""

    plan: StepPlan
    rows: Ints
    ids: Tensor
    logits: Tensor | None
    done: Event


class ModelRunner:
    """One rank's device work. One thread."""

    def __init__(self, platform: Platform, limits: Limits, program: TargetProgram, runners: Runners) -> None:
        """Capture each runner's keys. The first that has a key runs it; the last runs what none has captured."""
        self.platform = platform
        self.state = DeviceState(platform, limits)
        self._buffers = StepBuffers(platform, limits)
        self._program = program
        program.stage = self._stage
        self._ring = [platform.host_buffer((limits.max_rows,), torch.int32) for _ in range(limits.depth + 1)]
        self.eager_steps = 0
        self._runners: dict[StepKey, GraphRunner] = {}
        for runner, keys in runners.items():
            with torch.inference_mode():
                runner.prepare(program, keys)
            self._runners = dict.fromkeys(keys, runner) | self._runners
        self._eager = list(runners)[-1]

    def _stage(self, key: StepKey) -> StepTensors:
        """A step of padding rows, once it is on the device: the next may take its place on the host."""
        step = self._buffers.build(StepPlan(0, key, 0, 0, {}), self.state)
        done = self.platform.new_event()
        done.record()
        done.synchronize(timeout=300.0)
        return step

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Handle:
        """Launch a step. Mutates KV pages and the device state; does not wait for the device."""
        self.state.apply(plan)
        step = self._program.step = self._buffers.build(plan, self.state)
        self._program.key = plan.key
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

    def warm_up(self, tokens: int, *, prompt: bool) -> None:
        """Run a step of one padding row, so that the first request does not pay for kernel selection."""
        flags = RowFlag.EXACT | RowFlag.SAMPLE | (RowFlag.PROMPT if prompt else RowFlag(0))
        row = {Column.ROW_SLOT: 0, Column.ROW_N_QUERY: tokens, Column.ROW_START: 0, Column.ROW_FLAGS: flags}
        columns = {column: np.array([value], np.int32) for column, value in row.items()}
        if prompt:
            columns[Column.PROMPT_IDS] = np.zeros(tokens, np.int32)
        key, leading = StepKey(1, tokens, q_len=int(not prompt)), int(not prompt)
        self.collect(self.forward(StepPlan(0, key, int(StepFlag.GREEDY), leading, columns)))
        self.eager_steps = 0
