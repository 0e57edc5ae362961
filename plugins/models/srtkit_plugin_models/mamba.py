"""The Mamba2 mixer: projection, recurrence, gate and norm, projection back. Knows no backend and no state slot."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.layers import DTYPES, Linear, RecurrentMixer, RMSNorm
from srtkit.spec.models import ModelBuild
from srtkit.spec.recurrent import RecurrentSpec
from srtkit_plugin_models.config import DecoderConfig, MambaConfig


class Mamba:
    """[T, hidden] → [T, hidden].

    `parameters` are those that are no linear and no norm, by stored name; `weights` what the recurrence takes of
    them, by the contract's names, at fixed addresses.
    """

    def __init__(self, build: ModelBuild, config: DecoderConfig, mamba: MambaConfig, index: int) -> None:
        spec = build.plan.recurrent[index]
        inner, hidden = spec.heads * spec.head_dim, config.hidden_size
        self.parts = (inner, spec.conv_channels, spec.heads)
        self.in_proj = Linear(build, (sum(self.parts), hidden), bias=mamba.proj_bias)
        self.out_proj = Linear(build, (hidden, inner), bias=mamba.proj_bias)
        # Gate and norm are in float32, as in transformers, and rounded once.
        self.norm = RMSNorm(build.ops, inner, config.eps, "float32", build.device)
        self.dt_limits = mamba.dt_limits
        self.parameters = _parameters(spec, mamba, build.device)
        self.weights = _weights(self.parameters)
        self.mixer = RecurrentMixer(spec, index)

    def owners(self) -> dict[str, Linear | RMSNorm]:
        """Its parts that hold the other parameters, by their names in the layer."""
        return {"mamba.in_proj": self.in_proj, "mamba.norm": self.norm, "mamba.out_proj": self.out_proj}

    def bare(self) -> dict[str, Tensor]:
        """The other parameters, by their names in the layer."""
        return {f"mamba.{name}": tensor for name, tensor in self.parameters.items()}

    def pack(self) -> None:
        """After loading: the decay is stored as the logarithm of its negative."""
        torch.exp(self.parameters["A_log"], out=self.weights["a"]).neg_()

    def __call__(self, x: Tensor, rotation: object) -> Tensor:
        """The tokens of the step, each row's in order; `rotation` is for attention layers, no position is needed."""
        gate, xbc, dt = self.in_proj(x).split_with_sizes(self.parts, -1)
        dt = F.softplus(dt.float() + self.parameters["dt_bias"]).clamp(*self.dt_limits)
        y = self.mixer(xbc, dt).view(len(x), -1)
        normed: Tensor = self.norm(y.float() * F.silu(gate.float()))
        out: Tensor = self.out_proj(normed.to(x.dtype))
        return out


def _parameters(spec: RecurrentSpec, mamba: MambaConfig, device: torch.device) -> dict[str, Tensor]:
    """Empty, in the shapes and dtypes of the weight map."""
    dtype = DTYPES[spec.dtype]
    parameters = {name: torch.empty(spec.heads, device=device) for name in ("A_log", "D", "dt_bias")}
    parameters["conv1d.weight"] = torch.empty(spec.conv_channels, 1, spec.conv_width, dtype=dtype, device=device)
    if mamba.conv_bias:
        parameters["conv1d.bias"] = torch.empty(spec.conv_channels, dtype=dtype, device=device)
    return parameters


def _weights(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of the parameters, and room for the decay."""
    weights = {"conv_weight": parameters["conv1d.weight"].squeeze(1), "d": parameters["D"]}
    weights["a"] = torch.empty_like(parameters["A_log"])
    if "conv1d.bias" in parameters:
        weights["conv_bias"] = parameters["conv1d.bias"]
    return weights
