"""Rotary embedding parameters out of GGUF metadata, as Hugging Face's `rope_parameters`. No numpy, no torch.

Most scalings stand in keys. Llama 3's stands in a tensor of divisors, one a frequency, from which its four
numbers are found again; what no known rule explains is refused.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

from srtkit_plugin_loader_gguf.header import damaged, refusal
from srtkit_plugin_loader_gguf.names import ROPE_FACTORS

if TYPE_CHECKING:
    from srtkit_plugin_loader_gguf.config import ArchKeys

KEYS = (
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
)
DEFAULT_THETA = 10000.0
"""The format's own default when `rope.freq_base` is absent."""
TOLERANCE = 1e-4
REMEDY = "serve the model from its safetensors folder"


def parameters(keys: ArchKeys, head_dim: int) -> dict[str, Any]:
    """`rope_theta`, `rope_type` and the numbers of that type. Raises `LoaderError` for what is not understood."""
    path = keys.source.path
    if keys.number("rope.dimension_count", head_dim) != head_dim:
        raise refusal(path, f"rotates {keys.number('rope.dimension_count')} of {head_dim} dimensions of a head", REMEDY)
    theta = float(keys.number("rope.freq_base", DEFAULT_THETA))
    kind = keys.get("rope.scaling.type", "none")
    factors = _stored_factors(keys, head_dim // 2)
    if factors and kind != "none":
        raise refusal(path, f"has both {ROPE_FACTORS} and rope scaling of type {kind!r}", REMEDY)
    if factors:
        scaling = explain_factors(factors, theta)
        if scaling is None:
            raise refusal(path, f"{ROPE_FACTORS} follows no known rule", REMEDY)
        return {"rope_theta": theta, **scaling}
    match kind:
        case "none":
            return {"rope_theta": theta, "rope_type": "default"}
        case "linear":
            return {"rope_theta": theta, "rope_type": "linear", "factor": float(keys.number("rope.scaling.factor"))}
        case "yarn":
            return {"rope_theta": theta, **_yarn(keys)}
    raise refusal(path, f"rope scaling of type {kind!r} is not known (known: none, linear, yarn)", REMEDY)


def _yarn(keys: ArchKeys) -> dict[str, Any]:
    factor = float(keys.number("rope.scaling.factor"))
    yarn: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.number("rope.scaling.original_context_length"),
    }
    for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if f"rope.scaling.{theirs}" in keys.values:
            yarn[ours] = float(keys.number(f"rope.scaling.{theirs}"))
    # GGUF's number multiplies YaRN's own magnitude, Hugging Face's replaces it.
    if "rope.scaling.attn_factor" in keys.values:
        yarn["attention_factor"] = float(keys.number("rope.scaling.attn_factor")) * (1 + 0.1 * math.log(factor))
    return yarn


def _stored_factors(keys: ArchKeys, count: int) -> tuple[float, ...]:
    """The divisors of the rotary frequencies; empty when the file has none."""
    found = keys.source.tensors.get(ROPE_FACTORS)
    if found is None:
        return ()
    path, entry = found
    if entry.type != 0 or entry.shape != (count,):
        raise damaged(path, f"{ROPE_FACTORS} is not {count} float32 numbers")
    with path.open("rb") as file:
        file.seek(entry.start)
        stored = file.read(4 * count)
    if len(stored) != 4 * count:
        raise damaged(path, f"it ends inside {ROPE_FACTORS}")
    return struct.unpack(f"<{count}f", stored)


def explain_factors(factors: tuple[float, ...], theta: float) -> dict[str, Any] | None:
    """The scaling whose divisors are `factors` (one a frequency, fastest first); None when there is none.

    Llama 3 leaves fast frequencies alone, divides slow ones by `factor`, and in between gives the share
    s = (original / wavelength - low) / (high - low) to the unscaled frequency. Only ratios of `original`, `low`
    and `high` matter, so low is 1 and the line through s yields the other two.
    """
    factor = max(factors)
    if math.isclose(min(factors), factor, rel_tol=TOLERANCE):
        return {"rope_type": "linear", "factor": factor} if factor != 1 else {"rope_type": "default"}
    turns = [theta ** (-i / len(factors)) / (2 * math.pi) for i in range(len(factors))]  # 1 / wavelength
    between = [
        (turn, (1 / f - 1 / factor) / (1 - 1 / factor))
        for turn, f in zip(turns, factors, strict=True)
        if 1 + TOLERANCE < f < factor * (1 - TOLERANCE)
    ]
    if len(between) < 2:
        return None
    (x0, s0), (x1, s1) = between[0], between[-1]
    slope = (s1 - s0) / (x1 - x0)
    offset = slope * x0 - s0
    if offset <= 0:
        return None
    high = round(1 + 1 / offset, 3)
    original = round(slope * (high - 1))
    rule = llama3_factors(turns, factor, high, original)
    if any(not math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(rule, factors, strict=True)):
        return None
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def llama3_factors(turns: list[float], factor: float, high: float, original: float) -> list[float]:
    """The divisor of each frequency under Llama 3's rule with low = 1; `turns` are frequencies / 2π."""
    shares = (min(1.0, max(0.0, (original * turn - 1) / (high - 1))) for turn in turns)
    return [1 / ((1 - share) / factor + share) for share in shares]
