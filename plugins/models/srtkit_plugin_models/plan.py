"""What a model needs of this rank, as data: attention specs and the weight map. No torch.

Linears are split over ranks by heads (qkv), by inputs (o, down) or by outputs (gate and up);
norms, embedding and head are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.errors import Unsupported
from srtkit.spec.models import ModelPlan, PlanRequest, WeightEntry
from srtkit_plugin_models.config import DecoderConfig, read_config

DTYPES = ("bfloat16", "float16", "float32")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
# Old checkpoints store what is computed from the config.
IGNORED = (".rotary_emb.inv_freq",)


def plan(request: PlanRequest) -> ModelPlan:
    """Raises `Unsupported` naming the config key, also for a world that does not divide heads or sizes."""
    config = read_config(request.config)
    part = f"models:{config.architecture}"
    dtype = config.dtype if request.dtype == "auto" else request.dtype
    if dtype not in DTYPES:
        raise Unsupported(part, f"does not compute in {dtype}", f"set model.dtype to one of {', '.join(DTYPES)}")
    _check_world(part, config, request.shard.world)
    world = request.shard.world
    kv_dtype = dtype if request.kv_dtype == "auto" else request.kv_dtype
    return ModelPlan(
        architecture=config.architecture,
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_context,
        attention={
            index: AttentionSpec(
                q_heads=config.q_heads // world,
                kv_heads=config.kv_heads // world,
                head_dim=config.head_dim,
                v_head_dim=config.head_dim,
                scale=config.head_dim**-0.5,
                dtype=dtype,
                kv_dtype=kv_dtype,
                window=window,
            )
            for index, window in enumerate(config.windows)
        },
        weights=tuple(_weights(config, dtype, world)),
        intermediate_size=config.intermediate_size // world,
        ignored=IGNORED,
    )


def _check_world(part: str, config: DecoderConfig, world: int) -> None:
    shared = {
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    for key, size in shared.items():
        if size % world:
            raise Unsupported(part, f"config key {key}: {size} is not a multiple of {world} ranks", "parallel.tensor")
    if world > 1 and (config.o_bias or config.mlp_bias):
        key = "attention_bias" if config.o_bias else "mlp_bias"
        raise Unsupported(part, f"config key {key}: a bias after a sum over ranks is not served", "parallel.tensor = 1")


def _weights(config: DecoderConfig, dtype: str, world: int) -> Iterator[WeightEntry]:
    """The weight map, in the order of use."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.q_heads * config.head_dim, config.kv_heads * config.head_dim

    def whole(name: str, *shape: int, tied_to: str = "") -> WeightEntry:
        return WeightEntry(name, shape, dtype, (name,), (shape,), tied_to=tied_to)

    def linear(name: str, parts: dict[str, int], columns: int, *, bias: bool, dim: int) -> Iterator[WeightEntry]:
        """A linear of the stored `parts` (name → rows), cut along `dim` over the ranks."""
        base = name.rpartition(".")[0]
        rows = sum(parts.values())
        shape = (rows // world, columns) if dim == 0 else (rows, columns // world)
        sources = tuple(f"{base}.{part}.weight" for part in parts)
        full = tuple((size, columns) for size in parts.values())
        yield WeightEntry(f"{name}.weight", shape, dtype, sources, full, slice_dim=dim)
        if bias:
            sources = tuple(f"{base}.{part}.bias" for part in parts)
            sizes = tuple((size,) for size in parts.values())
            yield WeightEntry(f"{name}.bias", shape[:1], dtype, sources, sizes, slice_dim=0 if dim == 0 else None)

    yield whole(EMBEDDING, config.vocab_size, hidden)
    for index in range(config.layers):
        layer = f"model.layers.{index}"
        yield whole(f"{layer}.input_layernorm.weight", hidden)
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        yield from linear(f"{layer}.self_attn.qkv", qkv, hidden, bias=config.qkv_bias, dim=0)
        if config.qk_norm:
            yield whole(f"{layer}.self_attn.q_norm.weight", config.head_dim)
            yield whole(f"{layer}.self_attn.k_norm.weight", config.head_dim)
        yield from linear(f"{layer}.self_attn.o_proj", {"o_proj": hidden}, q_rows, bias=config.o_bias, dim=1)
        yield whole(f"{layer}.post_attention_layernorm.weight", hidden)
        gate_up = {"gate_proj": inner, "up_proj": inner}
        yield from linear(f"{layer}.mlp.gate_up", gate_up, hidden, bias=config.mlp_bias, dim=0)
        yield from linear(f"{layer}.mlp.down_proj", {"down_proj": hidden}, inner, bias=config.mlp_bias, dim=1)
    yield whole("model.norm.weight", hidden)
    yield whole(HEAD, config.vocab_size, hidden, tied_to=EMBEDDING if config.tied else "")
