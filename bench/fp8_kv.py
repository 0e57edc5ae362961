"""What FP8 KV costs in quality: mean KL of next-token distributions against KV in the model's dtype, on 20 texts.

Tokens are decoded one by one, the text's own forced after each, so that attention reads what is stored. The texts are
sections of Python's language reference; scales are calibrated on others, of docs/. `--values` asks what if the model's
values were so many times as large, which changes nothing else: no scale of 1.0 suits all models.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from srtkit.cli.main import main as srt
from srtkit.config.prepare import Run, prepare
from srtkit.config.settings import load_settings
from srtkit.config.source import resolve_source
from srtkit.engine.buffers import StepTensors
from srtkit.engine.build import build_engine
from srtkit.serve.prompts import serve_model
from srtkit.spec.layers import PagedAttention
from srtkit.spec.messages import Sampling, Submit
from srtkit.spec.step_plan import StepPlan

ROOT = Path(__file__).parents[1]
PREFIX = 4  # tokens of a text that are read as a prompt
FP8 = "float8_e4m3fn"
Logits = dict[tuple[int, int], Tensor]


def texts_of_python(n: int) -> list[str]:
    """Sections of the language reference, evenly from all of them."""
    long = [text for _, text in sorted(topics.items()) if len(text) > 1500]
    return long[:: len(long) // n][:n]


def texts_of_docs(n: int) -> list[str]:
    """Paragraphs of this repository's documentation, evenly from all of them."""
    files = sorted((ROOT / "docs").glob("*.md"))
    found = [part for file in files for part in file.read_text("utf-8").split("\n\n") if len(part) > 300]
    return found[:: len(found) // n][:n]


class Forced:
    """Stands for the sampler: notes the logits, and gives each row the token that its text has next.

    `of_slot` names the text of a row slot: slots are given in the order of the texts, which all start in one step.
    """

    def __init__(self, texts: Sequence[Sequence[int]], last_token: Tensor) -> None:
        self.of_slot: dict[int, int] = {}
        self.logits: Logits = {}
        self._texts = texts
        self._last_token = last_token

    def __call__(
        self, plan: StepPlan, step: StepTensors, outputs: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[Any, Any]]:
        """int32 [N] of the rows that sample."""
        ids, logits = [], outputs["logits"][: len(step.rows)]
        for slot, position, row in zip(step.sampling.host_slots, step.sampling.host_positions, logits, strict=True):
            text = self.of_slot.setdefault(int(slot), len(self.of_slot))
            self.logits[text, int(position)] = row.to(torch.float32, copy=True)
            ids.append(self._texts[text][int(position)])
        forced = torch.tensor(ids, dtype=torch.int32, device=self._last_token.device)
        self._last_token[step.sampling.slots[: len(ids)]] = forced
        return forced, {}


def decode(run: Run, texts: Sequence[Sequence[int]]) -> Logits:
    """(text, position) → float32 [vocab], the logits of the token at that position."""
    built = build_engine(run.settings, run.loaded, run.facts, run.config, run.path, lambda done, total: None)
    forced = Forced(texts, built.runner.program.last_token)
    built.runner._sample = forced  # type: ignore[method-assign]
    for rid, ids in enumerate(texts):
        sampling = Sampling(temperature=0.0, max_tokens=len(ids) - PREFIX)
        built.scheduler.submit(Submit(rid, np.asarray(ids[:PREFIX], "<i4").tobytes(), sampling))
    while built.scheduler.has_work:
        plan = built.scheduler.plan()
        deltas = built.scheduler.commit(plan, built.runner.collect(built.runner.forward(plan)))
        assert all(forced.of_slot[one.slot] == one.rid for one in deltas.started)
    built.close()
    return forced.logits


def divergence(reference: Logits, other: Logits) -> dict[str, float]:
    """Of the distributions, reference first: mean and largest KL in nats, and the share of equal likeliest tokens."""
    assert reference.keys() == other.keys()
    found, same = [], 0
    for place, logits in reference.items():
        p, q = (x.double().log_softmax(-1) for x in (logits, other[place]))
        found.append(float((p.exp() * (p - q)).sum()))
        same += int(p.argmax() == q.argmax())
    return {"mean": sum(found) / len(found), "largest": max(found), "same": same / len(found), "positions": len(found)}


@contextmanager
def values_times(factor: float) -> Iterator[None]:
    """Every attention layer stores values so many times as large, and gives the same: a power of two is exact."""
    forward = PagedAttention.forward

    def scaled(self: PagedAttention, q: Tensor, k: Tensor | None, v: Tensor | None) -> Tensor:
        return forward(self, q, k, None if v is None else v * factor) / factor

    PagedAttention.forward = scaled  # type: ignore[method-assign]
    try:
        yield
    finally:
        PagedAttention.forward = forward  # type: ignore[method-assign]


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, float]]:
    """Figures by how KV is stored."""
    source = resolve_source(load_settings(Path(arguments.config)).model.source)
    model = folder / source.name
    model.symlink_to(source)  # scales are written beside the link
    base = [f"model.source={model}", f"model.dtype={arguments.dtype}", "attention.use=torch", "memory.kv_gib=0.5"]
    base += ["platform.options.threads=1", "prefix_cache.use=chunk"]

    def run(*sets: str) -> Run:
        return prepare(load_settings(Path(arguments.config), [*base, *sets], environ={}))

    tokenizer = serve_model(run()).tokenizer
    assert tokenizer is not None
    texts = [tokenizer.encode(text)[: arguments.tokens] for text in texts_of_python(arguments.texts)]
    reference = decode(run(), texts)
    fp8 = f"memory.kv_dtype={FP8}"
    results = {"scales 1.0": divergence(reference, decode(run(fp8), texts))}
    prompts = folder / "texts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, texts_of_docs(20))), "utf-8")
    for margin in arguments.margin:
        command = ["calibrate", "kv", "--config", arguments.config, "--prompts", str(prompts), "--margin", str(margin)]
        with redirect_stdout(sys.stderr):
            code = srt([*command, *(part for one in base for part in ("--set", one))])
        if code:
            sys.exit(code)
        results[f"calibrated, margin {margin:g}"] = divergence(reference, decode(run(fp8), texts))
    return results


def main() -> None:
    """Print the table and the JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench fp8_kv")
    parser.add_argument("--config", default=str(ROOT / "configs" / "quickstart.toml"), help="settings of the model")
    parser.add_argument("--dtype", default="bfloat16", help="what is computed in, and of the KV that is compared with")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96, help="of a text, at most")
    parser.add_argument("--margin", type=float, nargs="*", default=[1.0, 1.25, 2.0], help="margins to calibrate with")
    parser.add_argument("--values", type=float, default=1.0, help="a power of two")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, values_times(arguments.values):
        results = measure(arguments, Path(folder))
    table = Table("FP8 KV", "mean KL", "largest", "equal likeliest token")
    for name, found in results.items():
        table.add_row(name, f"{found['mean']:.3g}", f"{found['largest']:.3g}", f"{found['same']:.1%}")
    Console(stderr=True).print(table)
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
