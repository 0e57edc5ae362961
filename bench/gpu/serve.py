"""A model served on this GPU, in this process: the same greedy tokens as on the CPU, and how fast.

    python -m bench.gpu.serve tokens            a small random model in float32, by every runner and attention
    python -m bench.gpu.serve speed [--shape qwen3-0.6b] [--runner eager cuda-full] [--workload G1 G2 G3 G4 G5]
                                    [--set memory.kv_dtype=float8_e4m3fn …]

`speed` makes weights up for a model's shape. G1: 256 requests of 100 to 1024 tokens in and out. G2: batch 1, 128 in,
256 out. G3: batch 64, 1024 in, 128 out. G4: 128 requests of 4,096 common and 128 own tokens. G5: a prompt of 8,192
tokens. JSON to --out, a line each to standard output.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.gpu.engine import Bare, Requests
from srtkit import Engine
from tests.live_server import tiny

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 128009,
    "torch_dtype": "bfloat16",
}
SHAPES = {"qwen3-0.6b": QWEN3_06B, "llama-8b": LLAMA_8B}
H200: dict[str, object] = {
    "graph_runner__options__cuda-full__max_rows": 256,
    "scheduler__max_running": 256,
    "scheduler__chunk_tokens": 8192,
    "memory__kv_gib": 48,
    "model__max_context": 8448,
}
"""What configs/h200.toml sets, with room for the workloads only."""
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def settings(folder: Path, source: Path, dtype: str, platform: str, **sets: object) -> tuple[Path, dict[str, str]]:
    """A file with the platform's defaults, and the given options as they are set on top."""
    file = folder / "config.toml"
    file.write_text(f'[model]\nsource = "{source}"\ndtype = "{dtype}"\n[platform]\nuse = "{platform}"\n')
    return file, {name.replace("__", "."): str(value) for name, value in sets.items()}


def tokens(folder: Path) -> dict[str, Any]:
    """Twenty prompts of up to 300 tokens, greedy and drawn, together and each again from the cache."""
    draw = random.Random(0)
    model = tiny.make_model(folder / "tiny")
    prompts = [[draw.randrange(256) for _ in range(draw.choice((1, 5, 16, 63, 130, 300)))] for _ in range(20)]
    ways: dict[str, tuple[str, dict[str, object]]] = {
        "cpu": ("cpu", {"attention__use": "torch", "ops__use": "[]"}),
        "cuda, references": ("cuda", {"attention__use": "torch", "ops__use": "[]"}),
        "cuda, triton": ("cuda", {}),
        "cuda, triton, pages of 7": ("cuda", {"memory__page_size": 7}),
        "cuda, triton, depth 0": ("cuda", {"scheduler__depth": 0}),
        "cuda, triton, chunks of 32": ("cuda", {"scheduler__chunk_tokens": 32, "scheduler__max_running": 16}),
        "cuda, triton, graphs": ("cuda", {"graph_runner__use": '["cuda-full", "eager"]'}),
    }
    found: dict[str, Any] = {}
    gold: list[list[list[int]]] = []
    for name, (platform, sets) in ways.items():
        try:
            made = answers(folder, model, platform, sets, prompts)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            gold = gold or made
            found[name] = [sum(map(list.__eq__, run, truth)) for run, truth in zip(made, gold, strict=True)]
        print(f"{name}: equal of 20, greedy, again, drawn: {found[name]}", flush=True)
    return found


def answers(
    folder: Path, model: Path, platform: str, sets: dict[str, object], prompts: list[list[int]]
) -> list[list[list[int]]]:
    """Token ids of the prompts: greedy, greedy again from the cache, drawn."""
    with Engine.from_config(*settings(folder, model, "float32", platform, memory__kv_gib=0.1, **sets)) as one:
        made = [one.generate(prompts, max_tokens=64, **GREEDY) for _ in range(2)]
        made.append(one.generate(prompts, max_tokens=64, temperature=0.8, top_p=0.9, seed=3, ignore_eos=True))
        return [[answer.token_ids for answer in run] for run in made]


def fixed(batch: int, n_prompt: int, n_out: int, seed: int) -> Requests:
    """A batch of equal lengths."""
    draw = random.Random(seed)
    return [([draw.randint(0, 10000) for _ in range(n_prompt)], n_out) for _ in range(batch)]


def varied() -> Requests:
    """256 requests with 100 to 1024 tokens in and out."""
    draw = random.Random(0)
    prompts = [[draw.randint(0, 10000) for _ in range(draw.randint(100, 1024))] for _ in range(256)]
    return [(prompt, draw.randint(100, 1024)) for prompt in prompts]


def per_token(one: Bare, batch: int, n_prompt: int, n_out: int) -> dict[str, float]:
    """Milliseconds of a decode step: all tokens less one token; and of the prompts."""
    one.seconds(fixed(batch, n_prompt, 8, 99))
    first = statistics.median(one.seconds(fixed(batch, n_prompt, 1, seed)) for seed in range(3))
    whole = statistics.median(one.seconds(fixed(batch, n_prompt, n_out, seed)) for seed in range(3))
    return {"ms_per_step": round((whole - first) / (n_out - 1) * 1e3, 3), "prompts_ms": round(first * 1e3, 1)}


def common(seed: int) -> Requests:
    """128 prompts of 4,096 common and 128 own tokens, continued by 64."""
    draw = random.Random(seed)
    head = [draw.randint(0, 10000) for _ in range(4096)]
    return [(head + [draw.randint(0, 10000) for _ in range(128)], 64) for _ in range(128)]


def shared_prefix(one: Bare) -> dict[str, float]:
    """Seconds for G4: nothing cached, and with the common part cached."""
    one.seconds(common(499))
    cold = statistics.median(one.seconds(common(500 + i)) for i in range(3))
    cached = []
    for i in range(3):
        head = common(600 + i)[0][0][:4096]
        own = [(head + ids[4096:], n) for ids, n in common(700 + i)]
        one.seconds([(head, 1)])
        cached.append(one.seconds(own, flush=False))
    return {"cold_s": round(cold, 3), "cached_s": round(statistics.median(cached), 3)}


def made_up(folder: Path, shape: str, runners: list[str], **sets: object) -> Bare:
    """A bare engine of one of `SHAPES` with weights made up, otherwise as configs/h200.toml sets it."""
    source = folder / "config.json"
    source.write_text(json.dumps(SHAPES[shape]))
    served = {name: value for name, value in H200.items() if name not in sets}
    served |= {"model_loader__use": "dummy", "graph_runner__use": json.dumps(runners)}
    file, given = settings(folder, source, "bfloat16", "cuda", **served, **sets)
    return Bare(file, [f"{name}={value}" for name, value in given.items()])


def speed(
    folder: Path, shape: str, runners: list[str], workloads: list[str], sets: dict[str, object]
) -> dict[str, Any]:
    """Each workload with each runner, with the given options on top."""
    found: dict[str, Any] = {}
    for runner in runners:
        with made_up(folder, shape, list(dict.fromkeys((runner, "eager"))), **sets) as one:
            figures: dict[str, Any] = {"start_s": one.start_s}
            if "G2" in workloads:
                figures["G2"] = per_token(one, 1, 128, 256)
            if "G3" in workloads:
                figures["G3"] = per_token(one, 64, 1024, 128)
            if "G1" in workloads:
                requests = varied()
                times = [one.seconds(requests) for _ in range(2)]
                figures["G1"] = {"tokens_per_s": round(sum(n for _, n in requests) / min(times)), "s": times}
            if "G4" in workloads:
                figures["G4"] = shared_prefix(one)
            if "G5" in workloads:
                times = [one.seconds(fixed(1, 8192, 1, seed)) for seed in range(4)]
                figures["G5"] = {"ttft_ms": round(statistics.median(times[1:]) * 1e3, 1)}
            figures["eager_steps"] = one.built.runner.eager_steps
        found[runner] = figures
        print(runner, figures, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("tokens", "speed"))
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--runner", nargs="*", default=["eager", "cuda-full"])
    parser.add_argument("--workload", nargs="*", default=["G1", "G2", "G3"])
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.what == "tokens":
            found = tokens(folder)
        else:
            pairs = (one.partition("=") for one in arguments.set)
            sets = {name.replace(".", "__"): value for name, _, value in pairs}
            found = speed(folder, arguments.shape, arguments.runner, arguments.workload, sets)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))
    if arguments.what == "tokens":
        sys.exit(any(one != [20, 20, 20] for one in found.values()))


if __name__ == "__main__":
    main()
