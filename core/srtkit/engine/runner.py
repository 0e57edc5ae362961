"""The model runner: a StepPlan in, sampled tokens out. Owns the device state of one rank.

It decides nothing: shapes, rows and pages come from the plan. Per step: take over what changed, upload
one block, fill the attention plans, run the program through the graph runner the plan's key names, sample.
"""

from collections.abc import Mapping, Sequence
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
Logprobs = dict[int, tuple[Tensor, Tensor]]
Planned = tuple[AttentionBackend, AttentionPlan]


@dataclass
class BoundGroup:
    """A layer group's backend, a second one where others than decode rows have their own, and its layers' handles."""

    backends: Sequence[AttentionBackend]
    handles: Sequence[LayerHandle]


class TargetProgram(Program):
    """The target model over the step that was staged last, and all that a step reads at fixed addresses.

    While steps are captured nobody stages any: `before` then makes one of padding rows. A captured key has attention
    plans of its own, all others share one a group.
    """

    step: StepTensors

    def __init__(self, model: Model, groups: Sequence[BoundGroup], limits: Limits, platform: Platform) -> None:
        self.state = DeviceState(platform, limits)
        self._buffers = StepBuffers(platform, limits)
        self._model, self._groups, self._limits, self._platform = model, groups, limits, platform
        self._shared = self._bind(limits)
        self._captured: dict[StepKey, tuple[list[Planned], list[Binding | None]]] = {}
        self._staged: StepKey | None = None

    def stage(self, plan: StepPlan) -> StepTensors:
        """Take over a plan: the step that runs next."""
        self.state.apply(plan)
        self.step, self._staged = self._buffers.build(plan, self.state), plan.key
        return self.step

    def before(self, key: StepKey) -> None:
        """Fill every group's plan."""
        if key != self._staged:
            self.stage(StepPlan(0, key, 0, 0, {}))
            self._platform.current_stream().synchronize()  # the next step may take this one's place on the host
            if key not in self._captured:
                self._captured[key] = self._bind(replace(self._limits, max_rows=key.rows, max_tokens=key.tokens), 1)
        plans, _ = self._captured.get(key, self._shared)
        for backend, plan in plans:
            backend.fill(plan, self.step.batch, self.step.view)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """Run the model; outputs "logits" and "hidden"."""
        _, table = self._captured.get(key, self._shared)
        with bound(table):
            output = self._model.run(self.step.inputs)
        return {"logits": output.logits, "hidden": output.hidden}

    def close(self) -> None:
        """Free plans and backends, and let go of the model and the pools: nothing runs afterwards."""
        for _, plan in (pair for pairs, _ in (self._shared, *self._captured.values()) for pair in pairs):
            plan.close()
        for backend in (backend for one in self._groups for backend in one.backends):
            backend.close()
        del self._model, self._groups, self._shared, self._captured

    def _bind(self, limits: Limits, n: int = 2) -> tuple[list[Planned], list[Binding | None]]:
        """New plans for steps up to `limits`, and what each layer's handle stands for with them. `n` 1: decode only."""
        pairs = [[(backend, backend.new_plan(limits)) for backend in one.backends[:n]] for one in self._groups]
        bindings = {
            handle.index: Binding(*own[0], handle, *own[1:])
            for one, own in zip(self._groups, pairs, strict=True)
            for handle in one.handles
        }
        return [pair for own in pairs for pair in own], [bindings.get(index) for index in range(max(bindings) + 1)]

    def cuts(self) -> frozenset[str]:
        """The attention operator."""
        return frozenset({"srtkit::attend"})


@dataclass
class Handle:
    """A launched step: its plan, what is on its way to the host, by row, and the mark to wait for.

    `ids` int32 [N] of the rows that sample; `logprobs` ids and values of those that want them.
    """

    plan: StepPlan
    rows: Ints
    ids: Tensor
    logprobs: Logprobs
    done: Event


class ModelRunner:
    """One rank's device work. One thread."""

    def __init__(self, platform: Platform, limits: Limits, program: TargetProgram, runners: Runners) -> None:
        """Capture each runner's keys. The first that has a key runs it; the last runs what none has captured."""
        self.platform = platform
        self._program = program
        self._ring = [platform.host_buffer((limits.max_rows,), torch.int32) for _ in range(limits.depth + 1)]
        self.eager_steps = 0
        self._runners: dict[StepKey, GraphRunner] = {}
        for runner, keys in runners.items():
            with torch.inference_mode():
                runner.prepare(program, keys)
            self._runners = dict.fromkeys(keys, runner) | self._runners
        self._last_resort = list(runners)[-1]

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Handle:
        """Launch a step. Mutates KV pages and the device state; does not wait for the device."""
        step = self._program.stage(plan)
        runner = self._runners.get(plan.key, self._last_resort)
        self.eager_steps += runner is self._last_resort
        outputs = runner.run(self._program, plan.key)
        n = len(step.rows)
        ids, logprobs = self._sample(plan, step, outputs["logits"][:n])
        host = self._ring[plan.step % len(self._ring)][:n]
        host.copy_(ids, non_blocking=True)
        done = self.platform.new_event()
        done.record()
        return Handle(plan, step.rows, host, logprobs, done)

    def _sample(self, plan: StepPlan, step: StepTensors, logits: Tensor) -> tuple[Tensor, Logprobs]:
        if len(step.rows) == 0:
            return step.batch.slots[:0], {}
        state, kept = self._program.state, logits
        if plan.flags & StepFlag.GREEDY:
            ids = logits.argmax(dim=-1).int()
        else:
            if plan.flags & StepFlag.LOGPROBS:
                logits = logits.clone()  # suppression must not show in reported log-probabilities
            ids = sample(logits, step.sampling, state)
        state.last_token[step.sampling.slots] = ids
        if not plan.flags & StepFlag.LOGPROBS:
            return ids, {}
        wanted, flags = state.admitted["logprobs"][step.sampling.host_slots], plan.column(Column.ROW_FLAGS)
        return ids, {
            int(row): self._to_host(log_probabilities(kept[i], ids[i : i + 1], int(wanted[i])))
            for i, row in enumerate(step.rows)
            if flags[row] & RowFlag.LOGPROBS
        }

    def _to_host(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        ids, values = (self.platform.host_buffer(one.shape, one.dtype).copy_(one, non_blocking=True) for one in pair)
        return ids, values

    @torch.inference_mode()
    def collect(self, handle: Handle) -> StepOutput:
        """Wait for that step only, and bring its tokens to the host."""
        handle.done.synchronize(timeout=300.0)
        ids = np.full(handle.plan.rows, -1, np.int32)
        ids[handle.rows] = handle.ids.numpy()
        return StepOutput(ids, {row: (top.numpy(), values.numpy()) for row, (top, values) in handle.logprobs.items()})

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
