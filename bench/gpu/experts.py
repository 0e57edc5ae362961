"""Both ways of multiplying by experts on an NVIDIA card, at the sizes of Qwen3-30B-A3B: right, captured, timed.

    python -m bench.gpu.experts [--out FILE]

Each way is captured, replayed on other tokens, and held against the MLPs of some tokens in float64. Ends with 1 if a
result is wrong or a way cannot be captured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.engine.ops import Binder
from srtkit.spec.facts import DeviceFacts, Shard
from srtkit.spec.models import ModelBuild, PlanRequest
from srtkit_plugin_models.config import ExpertsConfig
from srtkit_plugin_models.experts import Experts, TorchExperts, groups_without_host
from srtkit_plugin_models.plan import plan

CONFIG, HIDDEN = ExpertsConfig(count=128, per_token=8, size=768, renormalised=True), 2048
KEYS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 8,
    "hidden_size": HIDDEN,
    "intermediate_size": 768,
    "num_hidden_layers": 1,
    "num_attention_heads": 32,
}
TOKENS = (1, 8, 64, 256, 2048)
LIMIT = 2**-6
"""Relative to the largest value of a token: a few roundings in bfloat16."""


def made() -> TorchExperts:
    """One layer's, with random weights that keep the size of their input."""
    card = torch.device("cuda")
    binder = Binder((), DeviceFacts("cuda", torch.cuda.get_device_name(), ""))
    build = ModelBuild(plan(PlanRequest(KEYS, "bfloat16", "auto")), KEYS, card, binder, Shard(), max(TOKENS))
    experts = Experts(build, HIDDEN, CONFIG)
    experts.pack()
    assert isinstance(experts.op, TorchExperts)
    experts.op.gate_up.normal_(std=HIDDEN**-0.5)
    experts.op.down.normal_(std=CONFIG.size**-0.5)
    return experts.op


def error(experts: TorchExperts, x: Tensor, chosen: Tensor, found: Tensor) -> float:
    """The largest of a few tokens, relative to the largest value of each."""
    worst = 0.0
    for token in range(0, len(x), max(1, len(x) // 16)):
        for k, n in enumerate(chosen[token].tolist()):
            gate, up = (experts.gate_up[n].double() @ x[token].double()).chunk(2)
            wanted = experts.down[n].double() @ (F.silu(gate) * up)
            worst = max(worst, float((found[token, k] - wanted).abs().max() / wanted.abs().max()))
    return worst


def measured(experts: TorchExperts, way: Callable[[Tensor, Tensor], Tensor], tokens: int) -> dict[str, float]:
    """The error of a replay on other tokens than those of the capture, and its milliseconds, the median of 20."""
    x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    chosen = torch.rand(tokens, CONFIG.count, device="cuda").topk(CONFIG.per_token).indices
    way(x, chosen)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = way(x, chosen)
    x.normal_()
    chosen.copy_(torch.rand(tokens, CONFIG.count, device="cuda").topk(CONFIG.per_token).indices)
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return {"error": error(experts, x, chosen, found), "ms": sorted(times)[10]}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    experts, results, failed = made(), [], 0
    print("chosen here:", "by group" if groups_without_host(torch.device("cuda"), torch.bfloat16) else "by all")
    for name, way in (("by group", experts.by_group), ("by all", experts.by_all)):
        for tokens in TOKENS:
            try:
                result = measured(experts, way, tokens)
            except RuntimeError as problem:
                print(f"{name:9} {tokens:5} tokens  cannot be captured: {str(problem).splitlines()[0]}")
                failed = 1
                break
            failed |= result["error"] > LIMIT
            results.append({"way": name, "tokens": tokens, **result})
            print(f"{name:9} {tokens:5} tokens  {result['ms']:8.3f} ms  error {result['error']:.4f} of {LIMIT:.4f}")
    if given.out:
        given.out.write_text(json.dumps({"card": torch.cuda.get_device_name(), "results": results}, indent=1))
    return failed


if __name__ == "__main__":
    with torch.inference_mode():
        raise SystemExit(main())
