"""`ops:triton`'s operators of token ids beside torch's, vocabulary 151,936, and rotation and store in one: µs.

    python -m bench.gpu.tokens [--rows 1 64 128 256] [--out FILE]

Times are of CUDA graphs of 16 calls, medians over 9 runs; torch's are those of the references in core. Tokens are
compared on the way: argmax with torch's, draws with the reference's and with those of the same row alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.linear import microseconds
from srtkit.engine import ops as reference
from srtkit.spec.attention import LayerHandle, Rotation
from srtkit_plugin_attention_triton import slots
from srtkit_plugin_ops_triton.provider import embed, norm_rope, rope
from srtkit_plugin_ops_triton.sampling import argmax, penalize, sample

VOCAB, CALLS = 151936, 16
EARLY = {"EARLY": True, "launch_pdl": True}
DRAWS: dict[str, dict[str, float]] = {
    "temperature": {},
    "min-p 0.05": {"min_p": 0.05},
    "top-p 0.95": {"top_p": 0.95},
    "top-k 20, top-p 0.95": {"top_k": 20, "top_p": 0.95},
}
LAYERS = {"qwen3-0.6b": (16, 8, True), "llama-8b": (32, 8, False)}
"""Query heads, KV heads, whether heads are normed."""
HEAD, PAGE = 128, 64


def parameters(rows: int, **given: float) -> tuple[torch.Tensor, ...]:
    """What `sample` takes beside logits; temperature 0.8, unless told otherwise no filter."""
    wanted = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    values = [torch.full((rows,), value, device="cuda") for value in wanted.values()]
    values[1] = values[1].int()
    seed = torch.randint(-(2**62), 2**62, (rows,), device="cuda")
    return *values, seed, torch.arange(rows, device="cuda") + 7


def graphed(call: Callable[[], Any]) -> float:
    """One call."""
    return round(microseconds([call], CALLS), 1)


def largest(logits: torch.Tensor) -> dict[str, Any]:
    """argmax: as it is, and of a copy in float32, as a step had it before."""
    assert torch.equal(argmax(logits), logits.float().argmax(-1).int()), "argmax is not torch's"
    return {
        "triton": graphed(partial(argmax, logits, launch=EARLY)),
        "torch": graphed(lambda: logits.argmax(-1)),
        "torch, float32 copy": graphed(lambda: logits.float().argmax(-1)),
    }


def draw(logits: torch.Tensor, **given: float) -> dict[str, Any]:
    """sample: times, and the share of rows with the reference's token; a row alone must have the same."""
    told = parameters(len(logits), **given)
    found = sample(logits, *told)
    for row in {0, len(logits) // 2, len(logits) - 1}:
        alone = sample(logits[row : row + 1], *(one[row : row + 1] for one in told))
        assert torch.equal(alone, found[row : row + 1]), "a row alone draws something else"
    return {
        "triton": graphed(partial(sample, logits, *told, launch=EARLY)),
        "torch": graphed(lambda: reference.sample(logits, *told)),
        "same": round(float((found == reference.sample(logits, *told)).float().mean()), 4),
    }


def penalised(logits: torch.Tensor) -> dict[str, Any]:
    """penalize: times, of the same logits again and again."""
    rows = len(logits)
    slot = torch.randperm(rows, device="cuda")
    counts = torch.randint(-9, 3, (rows, VOCAB), device="cuda", dtype=torch.int32).clamp_(min=0)
    told = slot, counts, torch.rand(rows, VOCAB, device="cuda") < 0.01, *torch.rand(3, rows, device="cuda").add(0.5)
    found, right = logits.clone(), logits.clone()
    penalize(found, *told)
    reference.penalize(right, *told)
    torch.testing.assert_close(found, right)
    return {
        "triton": graphed(partial(penalize, found, *told, launch=EARLY)),
        "torch": graphed(partial(reference.penalize, right, *told)),
    }


def embedded(rows: int) -> dict[str, Any]:
    """embed: rows of 1,024."""
    weight = torch.randn(VOCAB, 1024, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(0, VOCAB, (rows,), device="cuda", dtype=torch.int32)
    assert torch.equal(embed(ids, weight), reference.embed(ids, weight)), "embed is not torch's"
    return {
        "triton": graphed(partial(embed, ids, weight, launch=EARLY)),
        "torch": graphed(partial(reference.embed, ids, weight)),
    }


def turned(rows: int, heads: int, kv_heads: int, normed: bool) -> dict[str, Any]:
    """Rotation and store: two launches, and one. What is stored must be the same."""
    fused = torch.randn(rows, heads + 2 * kv_heads, HEAD, device="cuda", dtype=torch.bfloat16)
    angle = torch.rand(rows, 1, HEAD // 2, device="cuda") * 6
    cos, sin = (torch.cat(pair, -1).bfloat16() for pair in ((angle.cos(), angle.cos()), (-angle.sin(), angle.sin())))
    weights = torch.rand(2, HEAD, device="cuda").bfloat16()
    places = torch.randperm(4 * max(rows, PAGE), device="cuda")[:rows].int()
    pages = 4 * max(rows, PAGE) // PAGE

    def layer() -> LayerHandle:
        planes = {
            name: torch.zeros(pages, PAGE, kv_heads, HEAD, device="cuda", dtype=fused.dtype) for name in ("k", "v")
        }
        return LayerHandle(0, planes)

    def apart(layer: LayerHandle, fused: torch.Tensor) -> None:
        q, k, v = fused.split((heads, kv_heads, kv_heads), 1)
        if normed:
            norm_rope(q, k, *weights, cos, sin, 1e-6, launch=EARLY)
        else:
            rope(q, k, cos, sin, launch=EARLY)
        slots.store(layer, places, (k, v), EARLY)

    def once(layer: LayerHandle, fused: torch.Tensor) -> None:
        rotation = Rotation(cos, sin, (*weights, 1e-6) if normed else None)
        slots.store_rotated(layer, places, fused.split((heads, kv_heads, kv_heads), 1), rotation, EARLY)

    first, second, copy = layer(), layer(), fused.clone()
    apart(first, fused)
    once(second, copy)
    torch.testing.assert_close(fused[:, :heads], copy[:, :heads])
    torch.testing.assert_close(first.planes, second.planes)
    return {"two": graphed(partial(apart, first, fused)), "one": graphed(partial(once, first, fused))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 128, 256])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}

    def told(name: str, rows: int, line: dict[str, Any]) -> None:
        found[f"{name}, {rows} rows"] = line
        print(f"{name}, {rows} rows", json.dumps(line), flush=True)

    torch.manual_seed(0)
    for rows in arguments.rows:
        for name, layer in LAYERS.items():
            told(f"rotation and store, {name}", rows, turned(rows, *layer))
        told("embed", rows, embedded(rows))
        for dtype in (torch.bfloat16, torch.float32):
            logits = (torch.randn(rows, VOCAB, device="cuda") * 3).to(dtype)
            told(f"argmax, {dtype}", rows, largest(logits))
            told(f"penalize, {dtype}", rows, penalised(logits))
            for name, given in DRAWS.items():
                told(f"sample, {name}, {dtype}", rows, draw(logits, **given))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
