"""A mixture of experts: the router, and the MLPs of the experts that it chooses. Knows no family and no stored name.

Shapes depend on the number of tokens alone and nothing is read back, so a step can be captured. Where no provider has
the operators "route" and "experts", they are torch's here, and there are two ways to multiply: in groups of rows by
expert, where torch can do so without the host, else by every expert.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.errors import EngineError
from srtkit.spec.layers import DTYPES, Linear
from srtkit.spec.models import ModelBuild
from srtkit.spec.ops import ExpertsOp, Op
from srtkit_plugin_models.config import ExpertsConfig

TOKENS = 128
"""Multiplied by every expert at a time: as many intermediate rows as this times the number of experts."""


def route(logits: Tensor, per_token: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] → the weights [T, k], float32, of the k likeliest experts, and their numbers, int64 [T, k]."""
    weights, experts = torch.softmax(logits, -1, dtype=torch.float32).topk(per_token)
    return weights / weights.sum(-1, keepdim=True) if renormalised else weights, experts


def groups_without_host(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `grouped_mm` has a kernel of its own: elsewhere it loops over the groups, their ends read by the host.

    On the CPU that loop is what is wanted. A device has a kernel where it is NVIDIA's, of capability 9 or 10, in
    bfloat16.
    """
    if device.type == "cpu":
        return True
    nvidia = device.type == "cuda" and torch.version.hip is None and dtype == torch.bfloat16
    return nvidia and torch.cuda.get_device_capability(device)[0] in (9, 10)


class TorchExperts(ExpertsOp):
    """On the weights as loaded. `act_mul` is the operator "silu_mul" of the experts' size."""

    def __init__(self, act_mul: Op) -> None:
        self.act_mul = act_mul

    def pack(self, gate_up: Tensor, down: Tensor) -> bool:
        self.gate_up, self.down = gate_up, down
        aligned = down.shape[1] % 8 == 0 and down.shape[2] % 8 == 0  # of whole vectors of 16 bytes, for that kernel
        device = down.device
        grouped = groups_without_host(device, down.dtype) and (device.type == "cpu" or aligned)
        self.multiply = self.by_group if grouped else self.by_all
        self.numbers = torch.arange(len(down), device=device)
        self.places = torch.arange(TOKENS, device=device).unsqueeze(1)
        return True

    def __call__(self, x: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        y = self.multiply(x, experts.long())
        return torch.bmm(weights.to(y.dtype).unsqueeze(1), y).squeeze(1)

    def by_group(self, x: Tensor, experts: Tensor) -> Tensor:
        """x [T, hidden], experts int64 [T, k] → what each says of its token, [T, k, hidden]; rows lie by expert."""
        chosen, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(chosen, self.numbers, right=True, out_int32=True)
        rows = x.index_select(0, order // experts.shape[1])
        inner = self.act_mul(F.grouped_mm(rows, self.gate_up.mT, offs=ends))
        y = F.grouped_mm(inner, self.down.mT, offs=ends)
        return torch.empty_like(y).index_copy_(0, order, y).view(*experts.shape, x.shape[1])

    def by_all(self, x: Tensor, experts: Tensor) -> Tensor:
        """The same; every expert says something of every token, and what was not asked for is left out."""
        said = []
        for part, chosen in zip(torch.split(x, TOKENS), torch.split(experts, TOKENS), strict=True):
            gate_up = torch.bmm(part.expand(len(self.down), -1, -1), self.gate_up.mT)
            inner = self.act_mul(gate_up.flatten(0, 1)).view(*gate_up.shape[:2], self.down.shape[2])
            y = torch.bmm(inner, self.down.mT)
            said.append(y[chosen, self.places[: len(part)]])
        return torch.cat(said)


class Experts:
    """The experts' MLPs, gate and up in one weight, and a linear that tells which of them a token takes.

    Weights are a rank's share: gate_up [E, 2 I, hidden], down [E, hidden, I]; None where the operator has its own form.
    """

    def __init__(self, build: ModelBuild, hidden: int, experts: ExpertsConfig) -> None:
        count, size, k = experts.count, experts.size // build.shard.world, experts.per_token
        dtype, ops = build.plan.dtype, build.ops
        self.communicator = build.communicator
        self.dtype, self.device = DTYPES[dtype], build.device
        self.shapes = (count, 2 * size, hidden), (count, hidden, size)
        self.gate = Linear(build, (count, hidden))
        self.weights: tuple[Tensor, Tensor] | None = self._empty()
        routing = partial(route, per_token=k, renormalised=experts.renormalised)
        self.route = ops.op_or(
            routing, "route", dtype, experts=count, per_token=k, renormalised=int(experts.renormalised)
        )
        own: ExpertsOp = TorchExperts(ops.op("silu_mul", dtype, hidden=size))
        self.op = ops.op_or(own, "experts", dtype, experts=count, per_token=k, hidden=hidden, size=size)

    def owners(self) -> dict[str, Linear]:
        """Its linear, by its name in it."""
        return {"gate": self.gate}

    def parameters(self) -> dict[str, Tensor]:
        """The other parameters in the shapes of the weight map, the experts' rows one after the other.

        Allocates again what `pack` dropped.
        """
        if self.weights is None:
            self.weights = self._empty()
        gate_up, down = self.weights
        return {"experts_gate_up.weight": gate_up.flatten(0, 1), "experts_down.weight": down.flatten(0, 1)}

    def pack(self) -> None:
        """Hand the loaded weights to the operator, and drop them where it keeps its own form."""
        if self.weights is None:
            raise EngineError("experts", "packed twice without a reload")
        if not self.op.pack(*self.weights):
            self.weights = None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        out = self.op(x, *self.route(self.gate(x)))
        if self.communicator is not None:
            self.communicator.all_reduce(out)
        return out

    def _empty(self) -> tuple[Tensor, Tensor]:
        gate_up, down = (torch.empty(shape, dtype=self.dtype, device=self.device) for shape in self.shapes)
        return gate_up, down
