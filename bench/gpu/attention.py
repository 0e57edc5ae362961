"""`attention:triton` on this GPU: time, bandwidth and arithmetic of decode and extend steps, over tiles and page sizes.

    python -m bench.gpu.attention [--sweep] [--page 16 64] [--kv-dtype float8_e4m3fn] [--latent HEADS] [--out FILE.json]

32 query and 8 KV heads of 128, or HEADS over latents of 512 + 64, in bfloat16; random page tables. Each case runs as a
graph over enough layers that the L2 cache does not help. The share is that of bytes read (decode), or of products
(extend), of the whole time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import srtkit_plugin_attention_triton as triton_plugin
import srtkit_plugin_platform_cuda as cuda
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionSpec,
    Batch,
    GroupView,
    LayerGroup,
    LayerHandle,
    MlaDims,
)
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.platform import PlatformBuild
from srtkit_plugin_attention_triton import backend
from srtkit_plugin_attention_triton.tiles import Tile

Q_HEADS, KV_HEADS, HEAD = 32, 8, 128
L2 = 400 << 20
DECODE = [(1, 256), (1, 8192), (16, 8192), (64, 1056), (64, 4096), (64, 8192), (128, 2048), (256, 600), (1, 131072)]
EXTEND = [(1, 0, 8192), (1, 32768, 512), (4, 4096, 2048), (8, 0, 1024)]
SWEPT = {("decode", 64, 1055), ("decode", 256, 599)}
SWEEP = {
    "decode": [
        Tile(16, tile, warps, stages)
        for tile, warps, stages in ((32, 2, 2), (32, 2, 3), (32, 2, 4), (64, 4, 2), (64, 4, 3), (64, 2, 2))
    ],
    "extend": [
        Tile(m, tile, warps, stages)
        for m, tile, warps, stages in ((64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 8, 2), (128, 128, 8, 2))
    ],
}


@dataclass
class Bench:
    """A step of one case over several layers."""

    backend: AttentionBackend
    plan: Any
    layers: list[LayerHandle]
    q: torch.Tensor
    out: torch.Tensor

    def times(self, repeats: int = 5, *, recorded: bool = True) -> list[float]:
        """Microseconds of one `attend`, of each repeat: in a graph, or launched one after the other."""

        def run() -> None:
            for layer in self.layers:
                self.backend.attend(self.plan, layer, self.q, self.out)

        run()
        torch.cuda.synchronize()
        if recorded:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
        again = graph.replay if recorded else run
        found = []
        for _ in range(repeats + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            again()
            end.record()
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3 / len(self.layers))
        return found[1:]


def spec_of(kv_dtype: str, latent: int) -> AttentionSpec:
    """The layer: `latent` query heads over latents of the usual size, or, where it is 0, the plain one."""
    if latent:
        mla = MlaDims(512, 64, 128, 128)
        return AttentionSpec(latent, 1, 576, 512, 192**-0.5, "bfloat16", kv_dtype, mla=mla)
    return AttentionSpec(Q_HEADS, KV_HEADS, HEAD, HEAD, HEAD**-0.5, "bfloat16", kv_dtype)


def bench_of(
    descriptor: AttentionDescriptor, platform: Any, facts: Any, spec: AttentionSpec,
    rows: int, stored: int, new: int, page: int,
) -> Bench:  # fmt: skip
    """All rows have `stored` tokens before the step and `new` of it."""
    context, tokens = stored + new, rows * new
    layout = descriptor.kv_layouts(spec, page, facts)[0]
    limits = Limits(max(rows, 256), max(tokens, 256), max(context, 131072), page)
    build = AttentionBuild(LayerGroup("all", spec, (0,)), layout, limits, platform, 0, descriptor.options())
    made = descriptor.build(build)
    per_row = -(-context // page)
    pages = 1 + rows * per_row
    layers = []
    for index in range(max(1, min(40, -(-L2 // (pages * layout.page_bytes))))):
        planes = {
            plane.name: torch.randn(pages, *plane.shape, dtype=torch.bfloat16, device="cuda").to(DTYPES[plane.dtype])
            for plane in layout.planes
        }
        scales = {name: torch.ones((), device="cuda") for name in ("k", "v")}
        layers.append(LayerHandle(index, planes, scales=scales if "fp8_kv" in spec.features else None))
    table = torch.from_numpy(1 + np.random.default_rng(0).permutation(pages - 1).astype(np.int32)).view(rows, per_row)
    n_query = np.full(rows, new, np.int32)
    ints = lambda values: torch.from_numpy(np.asarray(values, np.int32)).cuda()  # noqa: E731
    batch = Batch(
        rows=rows,
        tokens=tokens,
        leading=rows if new == 1 else 0,
        q_len=1,
        cu_q=ints(np.arange(rows + 1) * new),
        context=ints(np.full(rows, context)),
        positions=ints(np.tile(np.arange(stored, context), rows)),
        slots=ints(np.arange(rows)),
        host_q=n_query,
        host_context=np.full(rows, context, np.int32),
    )
    view = GroupView(page, table.cuda(), ints(np.zeros(tokens)), table.numpy())
    plan = made.new_plan(limits)
    made.fill(plan, batch, view)
    q = torch.randn(tokens, spec.q_heads, spec.head_dim, dtype=torch.bfloat16, device="cuda")
    out = torch.empty(tokens, spec.q_heads, spec.v_head_dim, dtype=torch.bfloat16, device="cuda")
    return Bench(made, plan, layers, q, out)


def measured(bench: Bench, kind: str, rows: int, stored: int, new: int, *, recorded: bool = True) -> dict[str, float]:
    """Microseconds, the spread of repeats, and GB/s or TFLOP/s."""
    times = bench.times(recorded=recorded)
    us = statistics.median(times)
    planes = bench.layers[0].planes.values()
    read = rows * (stored + new) * sum(plane[0, 0].nbytes for plane in planes)
    pairs = rows * (new * stored + new * (new + 1) / 2)
    products = 2 * pairs * bench.q.shape[1] * (bench.q.shape[2] + bench.out.shape[2])
    share = {"GB/s": round(read / us / 1e3)} if kind == "decode" else {"TFLOP/s": round(products / us / 1e6)}
    return {"us": round(us, 1), "spread": round((max(times) - min(times)) / us, 3), **share}


def cases() -> Iterator[tuple[str, int, int, int]]:
    """Kind, rows, tokens stored, new tokens."""
    yield from (("decode", rows, context - 1, 1) for rows, context in DECODE)
    yield from (("extend", *case) for case in EXTEND)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--page", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--kv-dtype", default="bfloat16")
    parser.add_argument("--latent", type=int, default=0, metavar="HEADS")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    options = cuda.Options()
    facts = cuda.probe(options)[0]
    platform = cuda.build(PlatformBuild(facts, options))
    spec, lines = spec_of(arguments.kv_dtype, arguments.latent), []
    for (kind, rows, stored, new), page in itertools.product(cases(), arguments.page):
        bench = bench_of(triton_plugin.srtkit_attention(), platform, facts, spec, rows, stored, new, page)
        name = f"{kind} {rows} x ({stored} + {new}), page {page}"
        lines.append({"case": name, "tile": "table", **measured(bench, kind, rows, stored, new)})
        print(lines[-1], flush=True)
        if arguments.sweep and page == 64 and (kind, rows, stored) in SWEPT:
            lines += swept(bench, kind, (rows, stored, new), name)
        del bench
        torch.cuda.empty_cache()
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"device": facts.name, "torch": torch.__version__, "lines": lines}, indent=1)
        )


def swept(bench: Bench, kind: str, shape: tuple[int, int, int], name: str) -> list[dict[str, Any]]:
    """The same case with every tile that compiles, fastest first; decode with other numbers of parts too."""
    found, before = [], backend.MERGE_CHUNK
    for tile, waves, chunk in itertools.product(
        SWEEP[kind], *(((1, 2, 4), (16, 64)) if kind == "decode" else ((4,), (16,)))
    ):
        tile = replace(tile, waves=waves)
        bench.backend._tile = lambda kind, queries, tile=tile: tile  # type: ignore[attr-defined]
        backend.MERGE_CHUNK = chunk
        try:
            line = measured(bench, kind, *shape)
        except Exception as error:  # too much shared memory for this device
            print(f"  {tile}: {type(error).__name__}")
            continue
        found.append({"case": name, "tile": str(tile), "waves": waves, "chunk": chunk, **line})
    found.sort(key=lambda line: line["us"])
    for line in found[:4]:
        print("  ", line, flush=True)
    backend.MERGE_CHUNK = before
    return found


if __name__ == "__main__":
    main()
