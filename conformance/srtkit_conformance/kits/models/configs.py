"""A small config for any architecture, in the usual Hugging Face keys, and its plans. Imports no torch.

An architecture that wants other keys refuses it, and is then not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Shard
from srtkit.spec.models import ModelPlan, ModelsDescriptor, PlanRequest
from srtkit_conformance.check import Informational
from srtkit_conformance.target import Target

TINY: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
    "attn_layer_indices": [1],
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "mlp_only_layers": [0],
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
"""What an architecture of latent attention wants beside."""
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "windowed": {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1},
}
"""What else a config may ask for. Where it is refused, that is no fault."""
RUNS = frozenset({"window", "soft_cap", "mla"})
"""Features of layers that the suite's own attention has."""
RECURS = frozenset({"mamba2", "gated_delta"})
"""Recurrences that the suite has formulas of."""


@dataclass(frozen=True)
class Config:
    """A config that the plugin serves."""

    name: str
    keys: Mapping[str, Any]

    def request(self, dtype: str = "float32", shard: Shard = Shard()) -> PlanRequest:
        """What `plan` is given; KV is stored in the dtype of the run."""
        return PlanRequest(dict(self.keys), dtype, dtype, shard)


def served(descriptor: ModelsDescriptor) -> Iterator[Config]:
    """Configs of all architectures that `plan` does not refuse."""
    for architecture in sorted(descriptor.architectures):
        tiny = TINY | LATENT if architecture.startswith("Deepseek") else TINY
        for name, change in CHANGES.items():
            config = Config(f"{architecture} {name}", {**tiny, **change, "architectures": [architecture]})
            if planned(descriptor, config.request()) is not None:
                yield config


def planned(descriptor: ModelsDescriptor, request: PlanRequest) -> ModelPlan | None:
    """The plan, None where it is refused."""
    try:
        return descriptor.plan(request)
    except Unsupported:
        return None


def runnable(target: Target) -> list[Config]:
    """Served configs whose layers the suite can run."""
    return [one for one in served(target.descriptor) if _runs(target.descriptor.plan(one.request()))]


def first_runnable(target: Target) -> list[Config]:
    """The first of each architecture."""
    found = {one.keys["architectures"][0]: one for one in reversed(runnable(target))}
    return list(found.values())


def _runs(plan: ModelPlan) -> bool:
    specs = plan.attention.values()
    plain = all(spec.features <= RUNS and spec.causal for spec in specs)
    recurrent = all(spec.kind in RECURS for spec in plan.recurrent.values())
    return plain and recurrent and plan.position_axes == 1


def nothing(target: Target) -> Informational:
    """The outcome where no config is served, or none that can be run."""
    names = ", ".join(sorted(target.descriptor.architectures))
    return Informational(f"the suite has no small config that it serves and that can be run, of {names}")


def plan_all(descriptor: ModelsDescriptor) -> None:
    """Every plan, in a new process."""
    for config in served(descriptor):
        descriptor.plan(config.request())
