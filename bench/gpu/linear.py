"""`ops:triton`'s linears beside torch's, on the weights of two models: microseconds and terabytes a second.

    python -m bench.gpu.linear [--rows 1 16 64] [--sweep] [--out FILE]

Each weight is one of several copies in turn, so that none is still in the cache. Times are of CUDA graphs of 64 calls,
medians over 9 runs, ours launched early as in a served step. `--sweep` tries shapes of programs for one row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch.nn import functional

from srtkit_plugin_ops_triton.linear import Linear
from srtkit_plugin_ops_triton.linear_kernels import row_linear_kernel

CALLS, RUNS, CACHE = 64, 9, 200 << 20
SHAPES = {
    "qwen3-0.6b qkv": (4096, 1024),
    "qwen3-0.6b o": (1024, 2048),
    "qwen3-0.6b gate_up": (6144, 1024),
    "qwen3-0.6b down": (1024, 3072),
    "qwen3-0.6b head": (151936, 1024),
    "llama-8b qkv": (6144, 4096),
    "llama-8b o": (4096, 4096),
    "llama-8b gate_up": (28672, 4096),
    "llama-8b down": (4096, 14336),
    "llama-8b head": (128256, 4096),
}
EARLY = {"EARLY": True, "launch_pdl": True}
SWEEP = list(itertools.product((1, 2, 4, 8), (512, 1024, 2048), (2, 4, 8)))
"""Outputs of a program, inputs of a turn, warps."""


def microseconds(calls: list[Callable[[], Any]], count: int = CALLS) -> float:
    """One call, from a graph of `count` of them in turn."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            calls[index % len(calls)]()
    taken = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(float(begin.elapsed_time(end)) * 1e3 / count)
    return statistics.median(taken)


def swept(x: torch.Tensor, weights: list[torch.Tensor], block_n: int, block_k: int, warps: int) -> float:
    """The kernel with programs of this shape."""
    n, k = weights[0].shape
    out = torch.empty(1, n, dtype=x.dtype, device=x.device)

    def call(weight: torch.Tensor) -> Callable[[], Any]:
        grid = (triton.cdiv(n, block_n),)
        sizes = {"K": k, "BIAS": False, "BLOCK_N": block_n, "BLOCK_K": block_k, "num_warps": warps} | EARLY
        return lambda: row_linear_kernel[grid](x, weight, None, out, n, **sizes)

    return microseconds([call(weight) for weight in weights])


def measured(rows: int, n: int, k: int, sweep: bool) -> dict[str, Any]:
    """One size of weight with so many rows: the largest error beside float64, then microseconds and TB/s of each."""
    copies = max(2, -(-CACHE // (n * k * 2)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
    x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    ours = [Linear(EARLY, few_rows=True) for _ in weights]
    for linear, weight in zip(ours, weights, strict=True):
        linear.pack(weight, None)
    gold = functional.linear(x.double(), weights[0].double())
    times = {
        "torch": microseconds([partial(functional.linear, x, weight) for weight in weights]),
        "triton": microseconds([partial(linear, x) for linear in ours]),
    }
    line: dict[str, Any] = {"error": float((ours[0](x) - gold).abs().max() / gold.abs().max())}
    line |= {which: [round(us, 2), round(n * k * 2 / us / 1e6, 2)] for which, us in times.items()}
    if sweep and rows == 1:
        best = sorted((swept(x, weights, *shape), shape) for shape in SWEEP)[:4]
        line["best"] = [[round(us, 2), *shape] for us, shape in best]
    return line


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for rows, (name, (n, k)) in itertools.product(arguments.rows, SHAPES.items()):
        found[f"{rows} {name}"] = line = measured(rows, n, k, arguments.sweep)
        print(rows, name, json.dumps(line), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
