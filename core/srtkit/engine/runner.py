"""The model runner: a StepPlan in, sampled tokens out. Owns the device state of one rank.

It decides nothing: shapes, rows and pages come from the plan. Per step: take over what changed, upload
one block, fill the attention plans, run the program through the graph runner the plan's key names, sample.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srtkit.engine.buffers import StepBuffers, StepTensors
from srtkit.engine.sampler import log_probabilities, sample
from srtkit.engine.state import Array, DeviceState
from srtkit.scheduler.scheduler import StepOutput
from srtkit.spec.attention import AttentionBackend, AttentionPlan, LayerHandle
from srtkit.spec.facts import Limits
from srtkit.spec.graph_runner import GraphRunner, Program
from srtkit.spec.kv import Component
from srtkit.spec.layers import Binding, RecurrentBinding, Table, bound
from srtkit.spec.models import Model
from srtkit.spec.ops import Op
from srtkit.spec.platform import Event, Platform
from srtkit.spec.recurrent import RecurrentBackend, RecurrentLayer, RecurrentPlan
from srtkit.spec.step_plan import Column, RowFlag, StepFlag, StepKey, StepPlan
from srtkit.spec.tiers import TierMover, unpack_transfers

Runners = Mapping[GraphRunner, Sequence[StepKey]]
Logprobs = dict[int, tuple[Tensor, Tensor]]


@dataclass
class BoundGroup:
    """A layer group's backend, a second one where others than decode rows have their own, and its layers' handles."""

    backends: Sequence[AttentionBackend]
    handles: Sequence[LayerHandle]
    component: str


@dataclass
class RecurrentGroup:
    """The backend of recurrent layers of one spec, and the layers."""

    backend: RecurrentBackend
    layers: Sequence[RecurrentLayer]
    inputs: tuple[str, ...]


@dataclass
class Plans:
    """Plans of all groups, in their order, for one key or for all that share them, and the binding table over them."""

    attention: list[list[tuple[AttentionBackend, AttentionPlan]]]
    recurrent: list[RecurrentPlan]
    table: Table


class TargetProgram(Program):
    """The target model over the step that was staged last, and all that a step reads at fixed addresses.

    While steps are captured nobody stages any: `before` then makes one of padding rows. A key that is captured `whole`,
    attention and all, has plans of its own; all others share one a group, for the rows and tokens without padding.
    """

    step: StepTensors
    mover: TierMover | None = None

    def __init__(
        self,
        model: Model,
        groups: tuple[Sequence[BoundGroup], Sequence[RecurrentGroup]],
        components: Sequence[Component],
        limits: Limits,
        platform: Platform,
        argmax: Op,
        whole: Collection[StepKey] = (),
    ) -> None:
        self.state, self._whole = DeviceState(platform, limits, components), frozenset(whole)
        self._buffers = StepBuffers(platform, limits, components)
        self.last_token, self._argmax = self._buffers.last_token, argmax
        self._model, self._limits, self._platform = model, limits, platform
        self._groups, self._recurrent = groups
        self._names = [component.name for component in components]
        self._shared = self._bind(limits)
        self._captured: dict[StepKey, Plans] = {}
        self._staged: StepKey | None = None

    def stage(self, plan: StepPlan) -> StepTensors:
        """Take over a plan: the step that runs next."""
        self.state.apply(plan)
        self._start_states(plan)
        self.step = self._buffers.build(plan, self.state, recorded=plan.key in self._whole)
        self._staged = plan.key
        return self.step

    def move(self, plan: StepPlan) -> None:
        """Start the plan's transfers."""
        if self.mover and len(words := plan.column(Column.TRANSFERS)):
            self.mover.start(unpack_transfers(words, self._names))
            for layer in range(0 if plan.rows else len(self._shared.table)):
                self.mover.gate(layer)  # a later step reads what no step of this plan has waited for

    def before(self, key: StepKey) -> None:
        """Fill every group's plan."""
        if key != self._staged:
            self.stage(StepPlan(0, key, 0, 0, {}))
            self._platform.current_stream().synchronize()  # the next step may take this one's place on the host
            if key in self._whole and key not in self._captured:
                limits = replace(self._limits, max_rows=key.rows, max_tokens=key.tokens)
                self._captured[key] = self._bind(limits, 1 if key.q_len else 2, alone=True)
        plans, step = self._captured.get(key, self._shared), self.step
        for group, own in zip(self._groups, plans.attention, strict=True):
            for backend, plan in own:
                backend.fill(plan, step.batch, step.views[group.component])
        if step.state_slots is not None:
            for one, states in zip(self._recurrent, plans.recurrent, strict=True):
                one.backend.fill(states, step.batch, step.state_slots, step.snapshots, 0)

    def body(self, key: StepKey) -> Mapping[str, Tensor]:
        """Look up the ids and run the model; outputs "logits", and as "ids" the likeliest, noted as the last tokens."""
        self._buffers.gather(self.step)
        gate = self.mover.gate if self.mover and key.flags & StepFlag.GATES else None
        with bound(self._captured.get(key, self._shared).table, gate):
            output = self._model.run(self.step.inputs)
        ids = self._argmax(output.logits)
        self.last_token.index_copy_(0, self.step.sampling.slots, ids)
        return {"logits": output.logits, "ids": ids}

    def outside(self, key: StepKey, operator: Callable[..., None], args: Sequence[Any]) -> None:
        """An operator (…, out, handle) over the tokens of the step; what padding tokens get is zero."""
        n = self.step.batch.tokens

        def own(given: Any) -> Any:
            if isinstance(given, list | tuple):
                return [own(one) for one in given]
            return given[:n] if isinstance(given, Tensor) else given

        if n < key.tokens:
            args[-2][n:].zero_()
        if n:
            with bound(self._shared.table):
                operator(*map(own, args))

    def close(self) -> None:
        """Free plans and backends, and let go of the model and the pools: nothing runs afterwards."""
        for plans in (self._shared, *self._captured.values()):
            for _, plan in (pair for own in plans.attention for pair in own):
                plan.close()
            for states in plans.recurrent:
                states.close()
        for backend in (backend for group in self._groups for backend in group.backends):
            backend.close()
        for one in self._recurrent:
            one.backend.close()
        del self._model, self._groups, self._recurrent, self._shared, self._captured

    def _bind(self, limits: Limits, n: int = 2, *, alone: bool = False) -> Plans:
        """New plans for steps up to `limits`, and what each layer's handle stands for with them. `n` 1: decode only.

        `alone`: they are a recorded step's own.
        """
        attention = [[(backend, backend.new_plan(limits)) for backend in one.backends[:n]] for one in self._groups]
        recurrent = [one.backend.new_plan(limits) for one in self._recurrent]
        bindings: dict[int, Binding | RecurrentBinding] = {
            handle.index: Binding(
                *own[0], handle, own[1] if own[1:] else None, own[0][0].parts().rotated if alone else None
            )
            for group, own in zip(self._groups, attention, strict=True)
            for handle in group.handles
        }
        for one, plan in zip(self._recurrent, recurrent, strict=True):
            bindings |= {layer.index: RecurrentBinding(one.backend, plan, layer, one.inputs) for layer in one.layers}
        return Plans(attention, recurrent, [bindings.get(index) for index in range(max(bindings) + 1)])

    def _start_states(self, plan: StepPlan) -> None:
        """Zero and copy the states that the plan names."""
        zero, copies = plan.records(Column.ZERO, 2), plan.records(Column.COPIES, 3)
        layers = [(one.backend, layer) for one in self._recurrent for layer in one.layers]
        if len(zero):
            slots = self.state.upload(zero[:, 1])
            for backend, layer in layers:
                backend.zero(layer, slots)
        if len(copies):
            source, target = self.state.upload(copies[:, 1:].T)
            for backend, layer in layers:
                backend.fork(layer, source, target)

    def cuts(self) -> frozenset[str]:
        """The operators that reach a backend."""
        return frozenset({"srtkit::attend", "srtkit::recur"})


@dataclass
class Handle:
    """A launched step: its plan, what is on its way to the host, by row, and the mark to wait for.

    `ids` int32 [N] of the rows that sample; `logprobs` ids and values of those that want them.
    """

    plan: StepPlan
    rows: Array
    ids: Tensor
    logprobs: Logprobs
    done: Event


class ModelRunner:
    """One rank's device work. One thread."""

    def __init__(
        self, platform: Platform, limits: Limits, program: TargetProgram, runners: Runners, draw: Op | None = None
    ) -> None:
        """Capture each runner's keys. The first that has a key runs it; the last runs what none has captured."""
        self.platform, self.program, self._draw = platform, program, draw
        self._ring = [platform.host_buffer((limits.max_rows,), torch.int32) for _ in range(limits.depth + 1)]
        self.eager_steps = 0
        self._runners: dict[StepKey, GraphRunner] = {}
        begun, free = time.perf_counter(), platform.memory(0).free
        for runner, keys in runners.items():
            with torch.inference_mode():
                runner.prepare(program, keys)
            self._runners = dict.fromkeys(keys, runner) | self._runners
        taken, seconds = free - platform.memory(0).free, round(time.perf_counter() - begun, 3)
        self.captured = {"steps": len(self._runners), "seconds": seconds, "bytes": taken}
        self._last_resort = list(runners)[-1]

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Handle:
        """Launch a step. Mutates KV pages and the device state; does not wait for the device."""
        self.program.move(plan)
        step = self.program.stage(plan)
        runner = self._runners.get(plan.key, self._last_resort)
        self.eager_steps += runner is self._last_resort
        outputs = runner.run(self.program, plan.key)
        ids, logprobs = self._sample(plan, step, outputs)
        host = self._ring[plan.step % len(self._ring)][: len(ids)]
        host.copy_(ids, non_blocking=True)
        done = self.platform.new_event()
        done.record()
        return Handle(plan, step.rows, host, logprobs, done)

    def _sample(self, plan: StepPlan, step: StepTensors, outputs: Mapping[str, Tensor]) -> tuple[Tensor, Logprobs]:
        n, state = len(step.rows), self.program.state
        ids, kept = outputs["ids"][:n], outputs["logits"][:n]
        if n and not plan.flags & StepFlag.GREEDY:
            # A copy where suppression would show in the log-probabilities that are reported.
            logits = kept.clone() if plan.flags & StepFlag.LOGPROBS else kept
            ids = sample(logits, step.sampling, state, self._draw)
            self.program.last_token.index_copy_(0, step.sampling.slots[:n], ids)
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
        """Run a step of one padding row, the decode step as if it were drawn: the first request pays for no kernels."""
        flags = RowFlag.EXACT | RowFlag.SAMPLE | (RowFlag.PROMPT if prompt else RowFlag(0))
        row = {Column.ROW_SLOT: 0, Column.ROW_N_QUERY: tokens, Column.ROW_START: 0, Column.ROW_FLAGS: flags}
        columns = {column: np.array([value], np.int32) for column, value in row.items()}
        if prompt:
            columns[Column.PROMPT_IDS] = np.zeros(tokens, np.int32)
        key, leading = StepKey(1, tokens, q_len=int(not prompt)), int(not prompt)
        self.collect(self.forward(StepPlan(0, key, int(StepFlag.GREEDY) * prompt, leading, columns)))
        self.eager_steps = 0
