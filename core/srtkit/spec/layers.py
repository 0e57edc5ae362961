"""Shared layers for model plugins, and the operators `srtkit::attend` and `recur`. The one module of spec with torch.

Layers own parameters and bound operators; they know no backend, no pool and no step. Attention and recurrences reach
their backends through the binding table of the runner that owns the model: the one permitted lookup,
per thread while a forward runs, so that several engines in one process do not collide.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionPlan,
    AttentionSpec,
    LayerHandle,
    RotatedStore,
    Rotation,
    Rows,
)
from srtkit.spec.errors import EngineError
from srtkit.spec.kv import ITEM_BYTES
from srtkit.spec.models import ModelBuild
from srtkit.spec.ops import OpBinder, WeightOp
from srtkit.spec.recurrent import RecurrentBackend, RecurrentLayer, RecurrentPlan, RecurrentSpec

_B = TypeVar("_B")
# The contract's dtype names as torch dtypes.
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_BYTES}


@dataclass
class Binding:
    """What a handle stands for: the layer's backend, the plan of this step, and the layer's own data.

    `prefill`: another backend and its plan, for the rows that are not leading. `rotated`: the backend's part, where the
    plan is that of a recorded step alone.
    """

    backend: AttentionBackend
    plan: AttentionPlan
    layer: LayerHandle
    prefill: tuple[AttentionBackend, AttentionPlan] | None = None
    rotated: RotatedStore | None = None


@dataclass
class RecurrentBinding:
    """What the handle of a recurrent layer stands for; `inputs` names what the operator is given."""

    backend: RecurrentBackend
    plan: RecurrentPlan
    layer: RecurrentLayer
    inputs: tuple[str, ...]


Table = Sequence[Binding | RecurrentBinding | None]


class _Active(threading.local):
    table: Table = ()
    gate: Callable[[int], None] | None = None


_active = _Active()


@contextmanager
def bound(table: Table, gate: Callable[[int], None] | None = None) -> Iterator[None]:
    """Make `table` (handle → binding) the one that the operators use in this thread.

    `gate`, if any, is called with the handle before a layer reads or writes stored KV.
    """
    before, _active.table, _active.gate = (_active.table, _active.gate), table, gate
    try:
        yield
    finally:
        _active.table, _active.gate = before


_library = torch.library.Library("srtkit", "DEF")  # type: ignore[no-untyped-call]
_library.define("attend(Tensor q, Tensor? k, Tensor? v, Tensor(a!) out, int handle) -> ()")  # type: ignore[no-untyped-call]
_library.define("recur(Tensor channels, Tensor[] scalars, Tensor(a!) out, int handle) -> ()")  # type: ignore[no-untyped-call]


def _binding(operator: str, handle: int, kind: type[_B]) -> _B:
    """The binding of a handle, which must be of that kind."""
    binding = _active.table[handle] if handle < len(_active.table) else None
    if not isinstance(binding, kind):
        raise EngineError(operator, f"layer {handle} is not bound to a backend", "run models through a runner")
    return binding


def _attend(q: Tensor, k: Tensor | None, v: Tensor | None, out: Tensor, handle: int) -> None:
    """Store this step's k and v (absent for layers that share KV), then attend. See AttentionBackend."""
    binding = _binding("srtkit::attend", handle, Binding)
    rows, fresh = Rows.ALL, None if k is None or v is None else (k, v)
    if _active.gate is not None:
        _active.gate(handle)
    if fresh is not None:
        binding.backend.store(binding.plan, binding.layer, *fresh)
    if binding.prefill is not None:
        rows, (backend, plan) = Rows.LEADING, binding.prefill
        backend.attend(plan, binding.layer, q, out, rows=Rows.REST, fresh=fresh)
    binding.backend.attend(binding.plan, binding.layer, q, out, rows=rows, fresh=fresh)


def _recur(channels: Tensor, scalars: Sequence[Tensor], out: Tensor, handle: int) -> None:
    """Advance the states by this step's tokens. See RecurrentBackend.step."""
    binding = _binding("srtkit::recur", handle, RecurrentBinding)
    inputs = dict(zip(binding.inputs, (channels, *scalars), strict=True))
    binding.backend.step(binding.plan, binding.layer, inputs, out)


def _fake(*args: object) -> None:
    """Shapes only: nothing is returned, `out` is mutated."""


for _name, _function in (("attend", _attend), ("recur", _recur)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"srtkit::{_name}", _fake, lib=_library)


class PagedAttention(nn.Module):
    """Attention of one layer over stored KV: q [T, q_heads, head_dim] → [T, q_heads, v_head_dim]."""

    def __init__(self, spec: AttentionSpec, index: int) -> None:
        super().__init__()
        self.handle = index
        self.q_heads = spec.q_heads
        self.v_head_dim = spec.v_head_dim

    def forward(self, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        """k [T, kv_heads, head_dim] and v are stored first; None for a layer that shares KV, or has stored them."""
        out = q.new_empty(q.shape[0], self.q_heads, self.v_head_dim)
        torch.ops.srtkit.attend(q, k, v, out, self.handle)
        return out

    def store_rotated(self, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation) -> bool:
        """Have the backend rotate q and k and store: see RotatedStore. False, and nothing done, where it does not."""
        binding = _binding("store_rotated", self.handle, Binding)
        if binding.rotated is None or _active.gate is not None:
            return False
        binding.rotated.store_rotated(binding.plan, binding.layer, q, k, v, rotation)
        return True


class RecurrentMixer(nn.Module):
    """The recurrence of one layer, its convolution included: channels [T, conv_channels] → [T, heads, head_dim]."""

    def __init__(self, spec: RecurrentSpec, index: int) -> None:
        super().__init__()
        self.handle = index
        self.size = (spec.heads, spec.head_dim)

    def forward(self, channels: Tensor, *scalars: Tensor) -> Tensor:
        """`scalars` [T, heads], float32 and final, follow the channels in the order of `RecurrentSpec.inputs`."""
        out = channels.new_empty(channels.shape[0], *self.size)
        torch.ops.srtkit.recur(channels, scalars, out, self.handle)
        return out


class Linear(nn.Module):
    """A linear layer bound to a weight-side op. The weight is [out, in], per rank.

    `reduce`: the input is a rank's share, so results are summed over the group.
    """

    def __init__(self, build: ModelBuild, size: tuple[int, int], *, bias: bool = False, reduce: bool = False) -> None:
        super().__init__()
        out_size, in_size = size
        dtype = DTYPES[build.plan.dtype]
        self.weight: Tensor | None = torch.empty(out_size, in_size, dtype=dtype, device=build.device)
        self.bias: Tensor | None = torch.empty(out_size, dtype=dtype, device=build.device) if bias else None
        self.op: WeightOp = build.ops.weight_op("linear", build.plan.dtype, **{"in": in_size, "out": out_size})
        self.communicator = build.communicator if reduce else None

    def pack(self) -> None:
        """Hand the loaded weight to the op, and drop it where the op keeps its own form."""
        if self.weight is None:
            raise EngineError("linear", "packed twice without a reload")
        self.op.pack(self.weight, self.bias)
        if not self.op.keeps_weight:
            self.weight = None

    def forward(self, x: Tensor) -> Tensor:
        """[T, in] → [T, out]."""
        y: Tensor = self.op(x)
        if self.communicator is not None:
            self.communicator.all_reduce(y)
        return y


class RMSNorm(nn.Module):
    """Root mean square norm over the last dimension, with or without a residual add before it."""

    def __init__(self, ops: OpBinder, size: int, eps: float, dtype: str, device: torch.device) -> None:
        super().__init__()
        self.weight = torch.empty(size, dtype=DTYPES[dtype], device=device)
        self.eps = eps
        self._norm = ops.op("rms_norm", dtype, hidden=size)
        self._add_norm = ops.op("add_rms_norm", dtype, hidden=size)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [T, size]."""
        return self._norm(x, self.weight, self.eps)  # type: ignore[no-any-return]

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place, then normalise it."""
        return self._add_norm(x, residual, self.weight, self.eps)  # type: ignore[no-any-return]


class Embedding(nn.Module):
    """Token embedding: ids int32 [T] → [T, hidden]."""

    def __init__(self, build: ModelBuild) -> None:
        super().__init__()
        plan = build.plan
        shape = (plan.vocab_size, plan.hidden_size)
        self.weight = torch.empty(shape, dtype=DTYPES[plan.dtype], device=build.device)
        self._embed = build.ops.op("embed", plan.dtype, hidden=plan.hidden_size)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up."""
        return self._embed(ids, self.weight)  # type: ignore[no-any-return]


class Head(nn.Module):
    """The LM head: hidden [N, H] → logits [N, vocab], of its dtype. Tied heads share the embedding's weight."""

    def __init__(self, build: ModelBuild, tied: Embedding | None) -> None:
        super().__init__()
        plan = build.plan
        shape = (plan.vocab_size, plan.hidden_size)
        self.weight: Tensor | None = None
        self._tied = (tied,)  # in a tuple: the embedding is not a sub-module of the head
        if tied is None:
            self.weight = torch.empty(shape, dtype=DTYPES[plan.dtype], device=build.device)
        self.op: WeightOp = build.ops.weight_op("linear", plan.dtype, **{"in": shape[1], "out": shape[0]})

    def pack(self) -> None:
        """Hand the weight (own or tied) to the op."""
        tied = self._tied[0]
        weight = tied.weight if tied is not None else self.weight
        if weight is None:
            raise EngineError("head", "packed twice without a reload")
        self.op.pack(weight, None)
        if not self.op.keeps_weight:
            self.weight = None

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.op(hidden)
        return logits
