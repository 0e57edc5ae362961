"""A mixture of experts: the router, and the MLPs of the experts that it chooses. Knows no family and no stored name.

Shapes depend on the number of tokens alone and nothing is read back, so a step can be captured. Two ways to multiply:
in groups of rows by expert, where torch can do so without the host, else by every expert.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.layers import DTYPES, Linear
from srtkit.spec.models import ModelBuild
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


class Experts:
    """The experts' MLPs, gate and up in one weight, and a linear that tells which of them a token takes.

    Weights are a rank's share: gate_up [E, 2 I, hidden], down [E, hidden, I].
    """

    def __init__(self, build: ModelBuild, hidden: int, experts: ExpertsConfig) -> None:
        self.config, self.communicator = experts, build.communicator
        count, size = experts.count, experts.size // build.shard.world
        dtype, device = DTYPES[build.plan.dtype], build.device
        self.gate = Linear(build, (count, hidden))
        self.gate_up = torch.empty(count, 2 * size, hidden, dtype=dtype, device=device)
        self.down = torch.empty(count, hidden, size, dtype=dtype, device=device)
        self.act_mul = build.ops.op("silu_mul", build.plan.dtype, hidden=size)
        aligned = size % 8 == 0 and hidden % 8 == 0  # of whole vectors of 16 bytes, which that kernel wants
        grouped = groups_without_host(device, dtype) and (device.type == "cpu" or aligned)
        self.multiply = self.by_group if grouped else self.by_all
        self.numbers = torch.arange(count, device=device)
        self.places = torch.arange(TOKENS, device=device).unsqueeze(1)

    def owners(self) -> dict[str, Linear]:
        """Its linear, by its name in it."""
        return {"gate": self.gate}

    def parameters(self) -> dict[str, Tensor]:
        """The other parameters in the shapes of the weight map, the experts' rows one after the other."""
        return {
            "experts_gate_up.weight": self.gate_up.flatten(0, 1),
            "experts_down.weight": self.down.flatten(0, 1),
        }

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] → [T, hidden]."""
        weights, experts = route(self.gate(x), self.config.per_token, self.config.renormalised)
        y = self.multiply(x, experts)
        out = torch.bmm(weights.to(y.dtype).unsqueeze(1), y).squeeze(1)
        if self.communicator is not None:
            self.communicator.all_reduce(out)
        return out

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
            gate_up = torch.bmm(part.expand(self.config.count, -1, -1), self.gate_up.mT)
            inner = self.act_mul(gate_up.flatten(0, 1)).view(*gate_up.shape[:2], self.down.shape[2])
            y = torch.bmm(inner, self.down.mT)
            said.append(y[chosen, self.places[: len(part)]])
        return torch.cat(said)
