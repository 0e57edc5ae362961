"""Compiles the operators for a GPU that is not here, and prints each kernel's registers and spilled bytes.

    python -m plugins.ops_triton.tests.compiled [sm90 | gfx942]

Nothing runs: launches are caught, with the arguments that they have. Not with TRITON_INTERPRET.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from plugins.attention_triton.tests.compiled import TARGETS, Compiled, Compiler, resources
from srtkit_plugin_ops_triton import kernels, linear_kernels, provider, sampling_kernels
from srtkit_plugin_ops_triton.linear import Linear

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD, ROWS = 151936, 4096, 32, 8, 128, 4


def calls(dtype: torch.dtype, launch: dict[str, bool]) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Each operator with arguments of usual sizes."""
    x, weight = torch.zeros(ROWS, HIDDEN, dtype=dtype), torch.zeros(HIDDEN, dtype=dtype)
    heads = torch.zeros(ROWS, HEADS + KV_HEADS, HEAD, dtype=dtype).split((HEADS, KV_HEADS), 1)
    turn, norm = torch.zeros(ROWS, 1, HEAD, dtype=dtype), torch.zeros(HEAD, dtype=dtype)
    logits, number = torch.zeros(ROWS, VOCAB, dtype=dtype), torch.zeros(ROWS)
    whole, seen = torch.zeros(ROWS, dtype=torch.int64), torch.zeros(ROWS, VOCAB, dtype=torch.int32)
    yield "rms_norm", provider.rms_norm, (x, weight, 1e-6)
    yield "add_rms_norm", provider.add_rms_norm, (x, x, weight, 1e-6)
    yield "silu_mul", provider.silu_mul, (x,)
    yield "rope", provider.rope, (*heads, turn, turn)
    yield "norm_rope", provider.norm_rope, (*heads, norm, norm, turn, turn, 1e-6)
    yield "linear", linear_of(HIDDEN, dtype, launch), (x[:1],)
    if launch["EARLY"] and dtype != torch.float32:
        for outputs in (HIDDEN // 2, HIDDEN, 2 * HIDDEN, 4 * HIDDEN):  # split, not split, in wider blocks
            few = torch.zeros(16, HIDDEN, dtype=dtype)
            yield f"linear of {outputs}", linear_of(outputs, dtype, launch), (few,)
    yield "embed", provider.embed, (whole.int(), x)
    yield "argmax", provider.argmax, (logits,)
    yield "sample", provider.sample, (logits, number, whole.int(), number, number, whole, whole)
    yield "penalize", provider.penalize, (logits, whole, seen, seen.bool(), number, number, number)


def linear_of(outputs: int, dtype: torch.dtype, launch: dict[str, bool]) -> Linear:
    """With a weight of zeros."""
    one = Linear(launch, few_rows=dtype != torch.float32)
    one.pack(torch.zeros(outputs, HIDDEN, dtype=dtype), None)
    return one


def compiled(architecture: str) -> Iterator[Compiled]:
    """All kernels, each once."""
    target, _ = TARGETS[architecture]
    found: dict[Any, Any] = {}
    for module in (kernels, linear_kernels, sampling_kernels):
        for name in [one for one in vars(module) if one.endswith("_kernel")]:
            setattr(module, name, Compiler(getattr(module, name), target, found))
    launch = {"EARLY": architecture == "sm90"}
    seen: set[Any] = set()
    for dtype in (torch.bfloat16, torch.float32):
        for name, call, arguments in calls(dtype, launch):
            call(*arguments, **({} if isinstance(call, Linear) else {"launch": launch}))
            for key in [key for key in found if key not in seen]:
                seen.add(key)
                yield Compiled(f"{name}, {dtype}", key[0], *resources(found[key]))


if __name__ == "__main__":
    for one in compiled(*sys.argv[1:] or ["sm90"]):
        print(one, flush=True)
