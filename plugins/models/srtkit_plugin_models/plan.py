"""What a model needs of this rank, as data: specs of its mixers, components, and the weight map. No torch.

Linears are split over ranks by heads (qkv), by inputs (o, down) or by outputs (gate and up), those of each expert, too;
norms, routers, projections to latents, embedding and head are whole on each rank. Models with recurrent layers are not.
"""

from __future__ import annotations

from collections.abc import Iterator

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.errors import Unsupported
from srtkit.spec.kv import FULL, STATE, Component
from srtkit.spec.models import ModelPlan, PlanRequest, WeightEntry
from srtkit.spec.recurrent import RecurrentSpec
from srtkit_plugin_models.config import DecoderConfig, LatentConfig, LayerConfig, MambaConfig, read_config

DTYPES = ("bfloat16", "float16", "float32")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
WINDOW = "window"
# Old checkpoints store what is computed from the config.
IGNORED = (".rotary_emb.inv_freq",)


def plan(request: PlanRequest) -> ModelPlan:
    """Raises `Unsupported` naming the config key, also for a world that does not divide heads or sizes."""
    config = read_config(request.config)
    part = f"models:{config.architecture}"
    dtype = config.dtype if request.dtype == "auto" else request.dtype
    if dtype not in DTYPES:
        raise Unsupported(part, f"does not compute in {dtype}", f"set model.dtype to one of {', '.join(DTYPES)}")
    world = request.shard.world
    _check_world(part, config, world)
    kv_dtype = dtype if request.kv_dtype == "auto" else request.kv_dtype
    layers = dict(enumerate(config.layers))
    mamba = config.mamba
    return ModelPlan(
        architecture=config.architecture,
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        max_context=config.max_context,
        attention={
            index: _attention(config, layer, world, dtype, kv_dtype)
            for index, layer in layers.items()
            if not layer.mamba
        },
        recurrent={index: _recurrent(mamba, dtype) for index, layer in layers.items() if layer.mamba and mamba},
        components=_components(config),
        weights=tuple(_Weights(config, dtype, world).entries()),
        intermediate_size=_intermediate(config, world),
        ignored=IGNORED,
    )


def _attention(config: DecoderConfig, layer: LayerConfig, world: int, dtype: str, kv_dtype: str) -> AttentionSpec:
    """With latents that of the absorbed form: one head of keys, whose latent part is the values, on every rank."""
    latent = config.latent
    return AttentionSpec(
        q_heads=config.q_heads // world,
        kv_heads=config.kv_heads // world if latent is None else 1,
        head_dim=config.head_dim,
        v_head_dim=config.head_dim if latent is None else latent.dims.rank,
        scale=config.scale,
        dtype=dtype,
        kv_dtype=kv_dtype,
        window=layer.window,
        soft_cap=config.soft_cap,
        mla=None if latent is None else latent.dims,
        component=WINDOW if layer.window and config.family.window_component else FULL.name,
    )


def _recurrent(mamba: MambaConfig, dtype: str) -> RecurrentSpec:
    return RecurrentSpec(
        kind="mamba2",
        heads=mamba.heads,
        head_dim=mamba.head_dim,
        state_dim=mamba.state_dim,
        groups=mamba.groups,
        conv_width=mamba.conv_width,
        conv_channels=mamba.heads * mamba.head_dim + 2 * mamba.groups * mamba.state_dim,
        dtype=dtype,
    )


def _intermediate(config: DecoderConfig, world: int) -> int:
    """Three such values a token is what core counts for an MLP in a step's memory.

    Latent attention may have more: queries in full form and over latents, what is rotated of them, and the result. Each
    of a token's experts has them, and its own input, result and a copy of that in the token's order.
    """
    size, latent, experts = config.intermediate_size // world, config.latent, config.experts
    if latent is not None:
        head = latent.dims.nope + 2 * latent.dims.rope + config.head_dim + latent.dims.rank
        size = max(size, -(-config.q_heads // world * head // 3))
    if experts is not None:
        size = max(size, experts.per_token * (experts.size // world + config.hidden_size))
    return size


def _components(config: DecoderConfig) -> tuple[Component, ...]:
    """Those of the layers, "full" first; all windows of a model are equal."""
    windows = {layer.window for layer in config.layers if layer.window and config.family.window_component}
    full = any(not layer.mamba and not (layer.window and windows) for layer in config.layers)
    local = [Component(WINDOW, reach="window", window=window) for window in windows]
    state = [STATE] if any(layer.mamba for layer in config.layers) else []
    return (*([FULL] if full else []), *local, *state)


def _check_world(part: str, config: DecoderConfig, world: int) -> None:
    shared = {
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    if config.experts:
        shared[config.family.expert_size] = config.experts.size
    for key, size in shared.items():
        if size % world:
            raise Unsupported(part, f"config key {key}: {size} is not a multiple of {world} ranks", "parallel.tensor")
    if world > 1 and (config.o_bias or config.mlp_bias):
        key = "attention_bias" if config.o_bias else "mlp_bias"
        raise Unsupported(part, f"config key {key}: a bias after a sum over ranks is not served", "parallel.tensor = 1")
    if world > 1 and config.mamba:
        raise Unsupported(part, "config key mamba_n_heads: recurrent layers are not split", "parallel.tensor = 1")


class _Weights:
    """The weight map of one rank, in the order of use."""

    def __init__(self, config: DecoderConfig, dtype: str, world: int) -> None:
        self.config, self.dtype, self.world = config, dtype, world

    def entries(self) -> Iterator[WeightEntry]:
        """Embedding, layers, head."""
        config, names, hidden = self.config, self.config.family.names, self.config.hidden_size
        yield self._whole(EMBEDDING, config.vocab_size, hidden)
        for index, layer in enumerate(config.layers):
            base = f"model.layers.{index}"
            yield self._whole(f"{base}.input_layernorm.weight", hidden)
            yield from self._mixer(base, layer)
            for norm in filter(None, (names.mixer_post_norm, names.mlp_norm)):
                yield self._whole(f"{base}.{norm}.weight", hidden)
            mlp = f"{base}.{names.mlp}"
            yield from self._experts(mlp) if layer.experts else self._mlp(mlp)
            if names.mlp_post_norm:
                yield self._whole(f"{base}.{names.mlp_post_norm}.weight", hidden)
        yield self._whole(f"{names.last_norm}.weight", hidden)
        yield self._whole(HEAD, config.vocab_size, hidden, tied_to=EMBEDDING if config.tied else "")

    def _mixer(self, base: str, layer: LayerConfig) -> Iterator[WeightEntry]:
        if layer.mamba:
            return self._mamba(f"{base}.mamba")
        if self.config.latent is not None:
            return self._latent(f"{base}.self_attn", self.config.latent)
        return self._attention(f"{base}.self_attn")

    def _latent(self, base: str, latent: LatentConfig) -> Iterator[WeightEntry]:
        """kv_b is stored by heads, each with the rows of its keys and then those of its values."""
        config, dims, hidden, bias = self.config, latent.dims, self.config.hidden_size, self.config.qkv_bias
        down = {"kv_a_proj_with_mqa": dims.rank + dims.rope}
        q_rows, kv_rows = (config.q_heads * size for size in (dims.nope + dims.rope, dims.nope + dims.v_head_dim))
        if latent.q_rank:
            yield from self._linear(f"{base}.qkv_a", {"q_a_proj": latent.q_rank} | down, hidden, bias=bias, dim=None)
            yield self._whole(f"{base}.q_a_layernorm.weight", latent.q_rank)
            yield from self._linear(f"{base}.q_b_proj", {"q_b_proj": q_rows}, latent.q_rank, bias=False, dim=0)
        else:
            yield from self._linear(f"{base}.qkv_a", down, hidden, bias=bias, dim=None)
            yield from self._linear(f"{base}.q_proj", {"q_proj": q_rows}, hidden, bias=False, dim=0)
        yield self._whole(f"{base}.kv_a_layernorm.weight", dims.rank)
        yield from self._linear(f"{base}.kv_b_proj", {"kv_b_proj": kv_rows}, dims.rank, bias=False, dim=0)
        columns = config.q_heads * dims.v_head_dim
        yield from self._linear(f"{base}.o_proj", {"o_proj": hidden}, columns, bias=config.o_bias, dim=1)

    def _attention(self, base: str) -> Iterator[WeightEntry]:
        config = self.config
        q_rows, kv_rows = config.q_heads * config.head_dim, config.kv_heads * config.head_dim
        qkv = {"q_proj": q_rows, "k_proj": kv_rows, "v_proj": kv_rows}
        yield from self._linear(f"{base}.qkv", qkv, config.hidden_size, bias=config.qkv_bias, dim=0)
        if config.family.qk_norm:
            yield self._whole(f"{base}.q_norm.weight", config.head_dim)
            yield self._whole(f"{base}.k_norm.weight", config.head_dim)
        yield from self._linear(f"{base}.o_proj", {"o_proj": config.hidden_size}, q_rows, bias=config.o_bias, dim=1)

    def _mlp(self, base: str) -> Iterator[WeightEntry]:
        hidden, inner, bias = self.config.hidden_size, self.config.intermediate_size, self.config.mlp_bias
        gate_up = {"gate_proj": inner, "up_proj": inner}
        yield from self._linear(f"{base}.gate_up", gate_up, hidden, bias=bias, dim=0)
        yield from self._linear(f"{base}.down_proj", {"down_proj": hidden}, inner, bias=bias, dim=1)

    def _experts(self, base: str) -> Iterator[WeightEntry]:
        """The router, and the rows of all experts one after the other; each is cut over the ranks as an MLP is."""
        experts, hidden = self.config.experts, self.config.hidden_size
        assert experts is not None
        gate, up, down = self.config.family.names.expert
        yield from self._linear(f"{base}.gate", {"gate": experts.count}, hidden, bias=False, dim=None)
        numbers = range(experts.count)
        gate_up = {f"experts.{n}.{part}": experts.size for n in numbers for part in (gate, up)}
        yield from self._linear(f"{base}.experts_gate_up", gate_up, hidden, bias=False, dim=0)
        downs = {f"experts.{n}.{down}": hidden for n in numbers}
        yield from self._linear(f"{base}.experts_down", downs, experts.size, bias=False, dim=1)

    def _mamba(self, base: str) -> Iterator[WeightEntry]:
        """What the recurrence decays and steps by is float32 whatever the model computes in."""
        mamba, hidden = self.config.mamba, self.config.hidden_size
        assert mamba is not None
        spec = _recurrent(mamba, self.dtype)
        inner = spec.heads * spec.head_dim
        projected = {"in_proj": inner + spec.conv_channels + spec.heads}
        yield from self._linear(f"{base}.in_proj", projected, hidden, bias=mamba.proj_bias, dim=0)
        yield self._whole(f"{base}.conv1d.weight", spec.conv_channels, 1, spec.conv_width)
        if mamba.conv_bias:
            yield self._whole(f"{base}.conv1d.bias", spec.conv_channels)
        for name in ("A_log", "D", "dt_bias"):
            yield self._whole(f"{base}.{name}", spec.heads, dtype="float32")
        yield self._whole(f"{base}.norm.weight", inner, dtype="float32")
        yield from self._linear(f"{base}.out_proj", {"out_proj": hidden}, inner, bias=mamba.proj_bias, dim=1)

    def _whole(self, name: str, *shape: int, tied_to: str = "", dtype: str = "") -> WeightEntry:
        """A parameter that every rank has, as it is stored."""
        return WeightEntry(name, shape, dtype or self.dtype, (name,), (shape,), tied_to=tied_to)

    def _linear(
        self, name: str, parts: dict[str, int], columns: int, *, bias: bool, dim: int | None
    ) -> Iterator[WeightEntry]:
        """A linear of the stored `parts` (name → rows), cut along `dim` over the ranks, or whole."""
        base = name.rpartition(".")[0]
        rows = sum(parts.values())
        shape = (rows // self.world if dim == 0 else rows, columns // self.world if dim == 1 else columns)
        sources = tuple(f"{base}.{part}.weight" for part in parts)
        full = tuple((size, columns) for size in parts.values())
        yield WeightEntry(f"{name}.weight", shape, self.dtype, sources, full, slice_dim=dim)
        if bias:
            sources = tuple(f"{base}.{part}.bias" for part in parts)
            sizes = tuple((size,) for size in parts.values())
            cut = 0 if dim == 0 else None
            yield WeightEntry(f"{name}.bias", shape[:1], self.dtype, sources, sizes, slice_dim=cut)
