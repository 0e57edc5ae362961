"""Seconds from a new process to an engine that can serve, with 16 GB of weights in safetensors files on this disk.

    python -m bench.gpu.startup [--runner cuda-full cuda-piecewise eager] [--repeats 2] [--out FILE]

Weights of Llama-8B's shape are made up and written first, so files are read from the host's memory as far as it keeps
them. Counted are Python's start, imports, loading, compiling (less what Triton's cache has) and capturing. A tokenizer
and HTTP are not: they take their part of a second beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.gpu.engine import Bare
from bench.gpu.serve import H200, LLAMA_8B, settings

LAYERS_A_FILE = 8


def checkpoint(folder: Path) -> int:
    """Write config.json and safetensors files with Llama-8B's names. How many bytes of weights."""
    config: dict[str, int] = {name: value for name, value in LLAMA_8B.items() if isinstance(value, int)}
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], 128
    kv = config["num_key_value_heads"] * size
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    ends = {"model.embed_tokens": (config["vocab_size"], hidden), "lm_head": (config["vocab_size"], hidden)}
    files = [{**ends, "model.norm": (hidden,)}]
    for first in range(0, config["num_hidden_layers"], LAYERS_A_FILE):
        of_file = range(first, min(first + LAYERS_A_FILE, config["num_hidden_layers"]))
        files.append({f"model.layers.{n}.{name}": shape for n in of_file for name, shape in layer.items()})
    where: dict[str, str] = {}
    total = 0
    for number, shapes in enumerate(files):
        tensors = {f"{name}.weight": _made(shape) for name, shape in shapes.items()}
        total += sum(one.nbytes for one in tensors.values())
        file = f"model-{number:05}.safetensors"
        save_file(tensors, folder / file)
        where |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return total


def _made(shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(std=0.02).cpu()


def start(folder: Path, runners: list[str]) -> None:
    """Build the engine as a server would, answer one request, and say where the time went."""
    sets = {**H200, "graph_runner__use": json.dumps(runners)}
    file, given = settings(folder, folder, "bfloat16", "cuda", **sets)
    with Bare(file, [f"{name}={value}" for name, value in given.items()]) as one:
        print(json.dumps({"build_s": one.start_s, "ready_at": time.time()}), flush=True)
        one.seconds([([1, 2, 3], 4)])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runner", nargs="*", default=["cuda-full", "cuda-piecewise", "eager"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--start", type=Path, help="in a process of its own: start from this folder")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.start:
        start(given.start, given.runner)
        return
    found = []
    with tempfile.TemporaryDirectory() as name:
        written = checkpoint(Path(name))
        torch.cuda.empty_cache()
        command = [sys.executable, "-m", "bench.gpu.startup", "--start", name, "--runner", *given.runner]
        for _ in range(given.repeats):
            begin = time.time()
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            one = json.loads(said.splitlines()[-1])
            figures = {"weights_gb": round(written / 1e9, 2), "ready_s": round(one["ready_at"] - begin, 1), **one}
            print(figures, flush=True)
            found.append(figures)
    if given.out:
        given.out.write_text(json.dumps({"card": torch.cuda.get_device_name(), "starts": found}, indent=1))


if __name__ == "__main__":
    main()
