"""The quick-start model on this GPU: the CPU's tokens, transformers' distributions, and memory that stays as it is.

    python -m bench.gpu.quickstart MODEL.gguf [tokens] [agreement] [memory] [--out FILE.json]

`tokens`: 20 prompts, greedy, in float32, by each backend, with graphs on and off, overlap on and off, cache on and off.
`agreement`: in bfloat16, each text's own next token forced after every step, beside transformers in bfloat16 where
its float32 likeliest token leads by more than 0.1. `memory`: 2,000 requests. Ends with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.fp8_kv import PREFIX, decode, texts_of_python
from bench.gpu.engine import Bare
from bench.gpu.serve import answers, settings
from srtkit.config.prepare import prepare
from srtkit.config.settings import load_settings
from srtkit.serve.prompts import serve_model

N_TEXTS, N_PROMPT, N_TEXT = 20, 60, 160
LEAD = 0.1
"""Float32 logits of the likeliest and the second token are further apart than this where agreement is asked for."""
REQUESTS, ROUND = 2000, 200
GRAPHS = '["cuda-full", "eager"]'
WAYS: dict[str, dict[str, object]] = {
    "defaults": {},
    "no graphs": {"graph_runner__use": '["eager"]'},
    "whole steps in one graph": {"graph_runner__use": GRAPHS},
    "steps in pieces": {"graph_runner__use": '["cuda-piecewise", "eager"]'},
    "breakable": {"graph_runner__use": '["cuda-breakable", "eager"]'},
    "no overlap": {"scheduler__depth": 0, "graph_runner__use": GRAPHS},
    "no cache": {"prefix_cache__use": "chunk", "graph_runner__use": GRAPHS},
    "attention:torch": {"attention__use": "torch", "graph_runner__use": '["eager"]'},
    "torch's operators": {"ops__use": "[]", "graph_runner__use": GRAPHS},
}


def texts(folder: Path, model: Path, n_tokens: int) -> list[list[int]]:
    """Token ids of sections of Python's language reference."""
    file, sets = settings(folder, model, "float32", "cpu")
    run = prepare(load_settings(file, [f"{name}={value}" for name, value in sets.items()]))
    tokenizer = serve_model(run).tokenizer
    assert tokenizer is not None
    return [tokenizer.encode(text)[:n_tokens] for text in texts_of_python(N_TEXTS)]


def tokens(folder: Path, model: Path) -> dict[str, Any]:
    """Of each way: how many of the prompts are continued as on the CPU, at first and again from the cache."""
    prompts = texts(folder, model, N_PROMPT)
    wanted = answers(folder, model, "cpu", {"attention__use": "torch", "ops__use": "[]"}, prompts)[0]
    found: dict[str, Any] = {}
    for name, sets in WAYS.items():
        try:
            first, again, _ = answers(folder, model, "cuda", sets, prompts)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = [sum(map(list.__eq__, run, wanted)) for run in (first, again)]
        print(f"{name}: equal of {N_TEXTS}, first and again: {found[name]}", flush=True)
    return found | {"ok": all(one == [N_TEXTS, N_TEXTS] for one in found.values())}


def agreement(folder: Path, model: Path) -> dict[str, Any]:
    """Likeliest tokens that agree with transformers, and mean KL from its distribution to ours, both in bfloat16."""
    from transformers import AutoModelForCausalLM

    given = texts(folder, model, N_TEXT)
    theirs: dict[torch.dtype, list[Tensor]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        one = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=dtype).cuda().eval()
        with torch.inference_mode():
            theirs[dtype] = [one(torch.tensor([ids], device="cuda")).logits[0].float().cpu() for ids in given]
        del one
    file, sets = settings(folder, model, "bfloat16", "cuda", memory__kv_gib=0.5, prefix_cache__use="chunk")
    ours = decode(prepare(load_settings(file, [f"{name}={value}" for name, value in sets.items()])), given)
    raw = clear = agree = same = 0
    divergences = []
    for (text, position), logits in ours.items():
        exact, reference = (theirs[dtype][text][position - 1] for dtype in (torch.float32, torch.bfloat16))
        logits = logits.float().cpu()
        equal = bool(logits.argmax() == reference.argmax())
        best, second = exact.topk(2).values.tolist()
        raw, same = raw + 1, same + equal
        if best - second > LEAD:
            clear, agree = clear + 1, agree + equal
        p, q = (x.double().log_softmax(-1) for x in (reference, logits))
        divergences.append(float((p.exp() * (p - q)).sum()))
    found = {"positions": raw, "same": same / raw, "clear": clear, "agree": agree / clear}
    found["mean_kl"] = sum(divergences) / len(divergences)
    print(f"agreement from position {PREFIX}: {found}", flush=True)
    return found | {"ok": found["agree"] >= 0.99 and found["mean_kl"] <= 2e-3}


def memory(folder: Path, model: Path) -> dict[str, Any]:
    """Bytes after each round of requests of many lengths: of tensors, reserved by torch, and of the process at most."""
    draw = random.Random(5)
    sets: dict[str, object] = {"memory__kv_gib": 1, "graph_runner__use": GRAPHS}
    file, given = settings(folder, model, "bfloat16", "cuda", **sets)
    rounds = []
    with Bare(file, [f"{name}={value}" for name, value in given.items()]) as one:
        for _ in range(REQUESTS // ROUND):
            sizes = [(draw.randint(1, 900), draw.randint(1, 60)) for _ in range(ROUND)]
            one.seconds([([draw.randrange(1000, 40000) for _ in range(n)], n_out) for n, n_out in sizes], flush=False)
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
            rounds.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident])
        eager = one.built.runner.eager_steps
    second, last = rounds[1], rounds[-1]
    grown = [b - a for a, b in zip(second, last, strict=True)]
    print(
        f"memory: after 400 requests {second}, after {REQUESTS} {last}; grown {grown}; eager steps {eager}", flush=True
    )
    return {
        "rounds": rounds,
        "grown": grown,
        "eager": eager,
        "ok": grown[0] <= 0 and grown[1] <= 0 and grown[2] < 32 << 20,
    }


def main() -> None:
    """Run what is named, or all."""
    ways = {"tokens": tokens, "agreement": agreement, "memory": memory}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("what", nargs="*", help=f"of {', '.join(ways)}; all if none is named")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {}
    for name in arguments.what or ways:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = ways[name](Path(folder), arguments.model.absolute())
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))
    sys.exit(not all(one["ok"] for one in found.values()))


if __name__ == "__main__":
    main()
