"""The module: embedding, blocks of attention and MLP, head. Built from the shared layers of the contract.

Knows no attention backend, no cache and no loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from srtkit.spec.errors import Unsupported
from srtkit.spec.layers import DTYPES, Embedding, Head, Linear, PagedAttention, RMSNorm
from srtkit.spec.models import Model, ModelBuild, ModelInputs, ModelOutput
from srtkit_plugin_models_my_plugin.plan import PART, Sizes, read_sizes


@final
class Block:
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, build: ModelBuild, sizes: Sizes, index: int) -> None:
        spec, dtype = build.plan.attention[index], build.plan.dtype
        self.heads = (spec.q_heads, spec.kv_heads, spec.kv_heads)
        self.input_layernorm = RMSNorm(build.ops, sizes.hidden, sizes.eps, dtype, build.device)
        self.qkv = Linear(build, (sum(self.heads) * spec.head_dim, sizes.hidden))
        self.rope = build.ops.op("rope", dtype, head_dim=spec.head_dim, rotary=spec.head_dim)
        self.attention = PagedAttention(spec, index)
        self.o_proj = Linear(build, (sizes.hidden, spec.q_heads * spec.v_head_dim))
        self.post_attention_layernorm = RMSNorm(build.ops, sizes.hidden, sizes.eps, dtype, build.device)
        self.gate_up = Linear(build, (2 * sizes.inner, sizes.hidden))
        self.silu_mul = build.ops.op("silu_mul", dtype, hidden=sizes.inner)
        self.down_proj = Linear(build, (sizes.hidden, sizes.inner))

    def __call__(self, residual: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """`residual` [T, hidden] in place, and returned; cos and sin [T, 1, head_dim] of the tokens' positions."""
        tokens = len(residual)
        q, k, v = self.qkv(self.input_layernorm(residual)).view(tokens, sum(self.heads), -1).split(self.heads, 1)
        self.rope(q, k, cos, sin)
        attended = self.o_proj(self.attention(q, k, v).flatten(1))
        x = self.post_attention_layernorm.add(attended, residual)
        return residual.add_(self.down_proj(self.silu_mul(self.gate_up(x))))


@final
class MyPluginDecoder(nn.Module, Model):
    """The model. `ModelOutput.hidden` is after the last norm."""

    def __init__(self, build: ModelBuild) -> None:
        super().__init__()
        sizes = read_sizes(build.config)
        if build.taps:
            raise Unsupported(PART, "gives no hidden states of single layers")
        self.plan, self.device = build.plan, build.device
        self.embed_tokens = Embedding(build)
        self.blocks = [Block(build, sizes, index) for index in range(sizes.layers)]
        self.norm = RMSNorm(build.ops, sizes.hidden, sizes.eps, build.plan.dtype, build.device)
        self.lm_head = Head(build, None)
        cos, sin = _rope_tables(sizes, DTYPES[build.plan.dtype])
        self.cos, self.sin = cos.to(build.device), sin.to(build.device)

    def run(self, inputs: ModelInputs) -> ModelOutput:
        """Raises `Unsupported` for inputs other than token ids."""
        if inputs.hidden is not None or inputs.embeds is not None:
            raise Unsupported(PART, "takes token ids only")
        cos, sin = (table.index_select(0, inputs.positions[0]) for table in (self.cos, self.sin))
        residual: Tensor = self.embed_tokens(inputs.ids)
        for block in self.blocks:
            residual = block(residual, cos, sin)
        hidden: Tensor = self.norm(residual)
        return ModelOutput(self.lm_head(hidden.index_select(0, inputs.logit_rows)), hidden)

    def slots(self) -> Mapping[str, Tensor]:
        """The parameters by the names of the weight map. Allocates again what `pack` gave to an operator."""
        owners, slots = self._owners(), {}
        for entry in self.plan.weights:
            owner = owners[entry.parameter.removesuffix(".weight")]
            if owner.weight is None:
                owner.weight = torch.empty(entry.shape, dtype=DTYPES[entry.dtype], device=self.device)
            slots[entry.parameter] = owner.weight
        return slots

    def pack(self) -> None:
        """Hand the weights of linears and head to their operators."""
        for owner in self._owners().values():
            if isinstance(owner, Linear | Head):
                owner.pack()

    def _owners(self) -> dict[str, Embedding | RMSNorm | Linear | Head]:
        owners: dict[str, Embedding | RMSNorm | Linear | Head] = {
            "model.embed_tokens": self.embed_tokens,
            "model.norm": self.norm,
            "lm_head": self.lm_head,
        }
        for index, block in enumerate(self.blocks):
            name = f"model.layers.{index}"
            owners |= {
                f"{name}.input_layernorm": block.input_layernorm,
                f"{name}.self_attn.qkv": block.qkv,
                f"{name}.self_attn.o_proj": block.o_proj,
                f"{name}.post_attention_layernorm": block.post_attention_layernorm,
                f"{name}.mlp.gate_up": block.gate_up,
                f"{name}.mlp.down_proj": block.down_proj,
            }
        return owners


def _rope_tables(sizes: Sizes, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 1, head_dim] as the operator "rope" wants them: (cos, cos) and (-sin, sin)."""
    exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
    angles = torch.outer(torch.arange(sizes.max_context, dtype=torch.float32), sizes.theta**-exponents)
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
