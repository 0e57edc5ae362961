"""Conversations of four times the pool on this GPU: radix alone against hiradix, and its copies beside the link's.

    python -m bench.gpu.tiers [--shape llama-8b] [--page 64] [--cache radix hiradix] [--trace FILE.json.gz] [--out FILE]
    python -m bench.gpu.tiers --tiny          the same on the CPU with a model of two layers: does the script run?

Weights are made up. Copies are measured beside torch's own of 256 MiB between pinned memory and the device, in the same
process: pages that lie in a row and pages that do not, asked of the mover alone; and in a round under the profiler.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.engine import Bare
from bench.gpu.serve import SHAPES, made_up, settings
from bench.turns import WORKING_SETS, Load, Talk
from srtkit.spec.prefix_cache import Transfer
from tests.live_server import tiny

LOAD = Load(sessions=28, context=4096, said=128, answer=32, rounds=2)
TINY = Load(sessions=8, context=200, said=24, answer=6, rounds=1)
TRACED = 6
"""Conversations of the round under the profiler."""
PIECE = 256 << 20
REPEATS = 7
APART_US = 500.0
"""Copies with less between them are one burst."""


def engine(folder: Path, shape: str, cache: str, load: Load, page: int) -> Bare:
    """An engine whose pool holds a quarter of the load, with room for all of it on the host."""
    config = tiny.CONFIG if shape == "tiny" else SHAPES[shape]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    item = 4 if shape == "tiny" else 2
    gib = load.gib(2 * item * config["num_hidden_layers"] * config["num_key_value_heads"] * head)
    sets: dict[str, object] = {
        "prefix_cache__use": cache,
        "memory__page_size": page,
        "memory__kv_gib": gib / WORKING_SETS,
        "model__max_context": -(-(load.longest + load.said + load.answer + 1) // page) * page,  # with the traced round
        "scheduler__max_running": 16,
    }
    if cache == "hiradix":
        sets["prefix_cache__options__hiradix__host_gib"] = 1.05 * gib
    if shape != "tiny":
        sets["graph_runner__options__cuda-full__max_rows"] = 16
        return made_up(folder, shape, ["cuda-full", "eager"], **sets)
    file, given = settings(folder, tiny.make_model(folder / "tiny"), "float32", "cpu", **sets)
    return Bare(file, [f"{name}={value}" for name, value in given.items()])


def link(device: torch.device) -> dict[str, float]:
    """GB/s of one large copy, each way, from and to pinned memory (a CPU: from and to its own)."""
    host = torch.zeros(PIECE, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.zeros(PIECE, dtype=torch.uint8, device=device)

    def seconds(target: torch.Tensor, source: torch.Tensor) -> float:
        wait(device)
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        wait(device)
        return time.perf_counter() - begin

    ways = {"in": (there, host), "out": (host, there)}
    return {way: round(PIECE / min(seconds(*pair) for _ in range(REPEATS)) / 1e9, 2) for way, pair in ways.items()}


def wait(device: torch.device) -> None:
    """Until the device has done all."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def page_copies(one: Bare, device: torch.device) -> dict[str, float]:
    """GB/s of pages that the mover copies, from asking for them until they are there. Spoils the cache's pages."""
    built = one.built
    mover, pool = built.runner.program.mover, built.scheduler.book.main.pool
    assert mover is not None
    layers = [layer for choice in built.config.groups for layer in choice.group.layers]
    page_bytes = sum(one.page_bytes for one in built.config.memory.pools)
    n = min(pool.total // 2, (1 << 30) // page_bytes + 1)
    random, rows = np.random.default_rng(3), np.arange(1, n + 1, dtype=np.int32)
    found = {}
    for name, here, there in (
        ("in a row", rows, rows),
        ("anywhere", *(random.permutation(pool.total)[:n].astype(np.int32) + 1 for _ in range(2))),
    ):
        for way in ("in", "out"):
            taken = []
            for number in range(REPEATS):
                wait(device)
                begin = time.perf_counter()
                mover.start([Transfer(number + 1, "full", way, "host", here, there)])  # type: ignore[arg-type]
                for layer in layers:
                    mover.gate(layer)
                wait(device)
                taken.append(time.perf_counter() - begin)
                mover.finished()
            found[f"{way}, {name}"] = round(n * page_bytes / statistics.median(taken) / 1e9, 2)
    return found


def traced(talk: Talk, file: Path) -> dict[str, Any]:
    """A round of some conversations under the profiler: writes its trace, and tells of its copies."""
    cuda = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        talk.round(TRACED)
        wait(torch.device("cuda" if cuda else "cpu"))
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(plain))
        content = plain.read_bytes()
    file.write_bytes(gzip.compress(content))
    return copies_of(json.loads(content)["traceEvents"])


def copies_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Of what is brought to the device on the mover's streams: bandwidth in its bursts, and its share beside kernels.

    {} without copies. Times of a trace are µs. A stream is the mover's if it carries a twentieth of all bytes copied.
    """
    copies = [one for one in events if one.get("cat") == "gpu_memcpy"]
    carried: Counter[int] = Counter()
    for one in copies:
        carried[one["args"]["stream"]] += one["args"]["bytes"]
    own = {stream for stream, n in carried.items() if n > sum(carried.values()) / 20}
    loads = [one for one in copies if "HtoD" in one["name"] and one["args"]["stream"] in own]
    if not loads:
        return {}
    lanes = {one["args"]["stream"] for one in loads}
    kernels = [one for one in events if one.get("cat") == "kernel"]
    with_own_kernels = [one for one in loads + kernels if one["args"]["stream"] in lanes]
    bursts = [
        (start, stop)
        for start, stop in _joined(with_own_kernels, APART_US)
        if any(start <= one["ts"] < stop for one in loads)
    ]
    copying = _joined([one for one in copies if one["args"]["stream"] in own], 0.0)
    computing = _joined([one for one in kernels if one["args"]["stream"] not in own], 0.0)
    moved = sum(one["args"]["bytes"] for one in loads)
    return {
        "copies": len(loads),
        "mib_per_copy": round(moved / len(loads) / 2**20, 3),
        "gb": round(moved / 1e9, 3),
        "gb_per_s": round(moved / _length(bursts) / 1e3, 2),
        "gb_per_s_of_copies_alone": round(moved / sum(one["dur"] for one in loads) / 1e3, 2),
        "beside_kernels": round(_common(copying, computing) / _length(copying), 3),
    }


Spans = list[tuple[float, float]]


def _joined(events: list[dict[str, Any]], apart: float) -> Spans:
    """Spans of time that the events cover, in order; gaps of at most `apart` are covered, too."""
    spans: Spans = []
    for start, stop in sorted((one["ts"], one["ts"] + one["dur"]) for one in events):
        if spans and start <= spans[-1][1] + apart:
            spans[-1] = spans[-1][0], max(spans[-1][1], stop)
        else:
            spans.append((start, stop))
    return spans


def _length(spans: Spans) -> float:
    return sum(stop - start for start, stop in spans)


def _common(a: Spans, b: Spans) -> float:
    """Time that both cover."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        i, j = (i + 1, j) if a[i][1] < b[j][1] else (i, j + 1)
    return total


def measure(shape: str, caches: list[str], page: int, trace: Path) -> dict[str, Any]:
    """Rounds with each cache; with hiradix also its copies, beside the link's."""
    load = TINY if shape == "tiny" else LOAD
    device = torch.device("cpu" if shape == "tiny" else "cuda")
    found: dict[str, Any] = {"shape": shape, "page": page, "load": str(load), "link_gb_per_s": link(device)}
    print(found, flush=True)
    for cache in caches:
        with tempfile.TemporaryDirectory() as name, engine(Path(name), shape, cache, load, page) as one:
            talk = Talk(one, load)
            own: dict[str, Any] = {"start_s": one.start_s, **talk.rounds()}
            print(cache, own, flush=True)
            if cache == "hiradix":
                own["loads"] = traced(talk, trace)
                own["page_copies_gb_per_s"] = page_copies(one, device)
                print(cache, own["loads"], own["page_copies_gb_per_s"], flush=True)
        found[cache] = own
    return found


def goals(found: dict[str, Any]) -> dict[str, float]:
    """What the figures are held against: 2 times, 60 % of the link in service, 80 % of it for pages alone."""
    told = {}
    if "radix" in found and "hiradix" in found:
        told["hiradix / radix (2)"] = found["hiradix"]["tokens_per_s"] / found["radix"]["tokens_per_s"]
    if "hiradix" in found:
        speed, own = found["link_gb_per_s"], found["hiradix"]
        if own["loads"]:
            told["loads / link (0.6)"] = own["loads"]["gb_per_s"] / speed["in"]
            told["copies beside kernels"] = own["loads"]["beside_kernels"]
        for name, value in own["page_copies_gb_per_s"].items():
            told[f"pages {name} / link (0.8)"] = value / speed[name.partition(",")[0]]
    return {name: round(value, 3) for name, value in told.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-8b")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, to see whether the script runs")
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--cache", nargs="*", default=["radix", "hiradix"])
    parser.add_argument("--trace", type=Path, default=Path("tiers-trace.json.gz"))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = measure("tiny" if given.tiny else given.shape, given.cache, 16 if given.tiny else given.page, given.trace)
    found["goals"] = goals(found)
    print(json.dumps(found["goals"], indent=1))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
