"""What `shared_prefixes` of `attention:fa3` gains where rows share pages, and costs where none do; beside Triton's.

    python -m bench.gpu.fa3_prefix [--library FILE.so] [--out FILE.json]

Recorded decode steps of 32 query and 8 KV heads of 128 in bfloat16: microseconds of a layer. A recorded step launches
what shared prefixes take whether or not rows share any.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch

import srtkit_plugin_attention_fa3 as fa3
import srtkit_plugin_attention_triton as triton
import srtkit_plugin_platform_cuda as cuda
from bench.gpu.attention import Bench, bench_of, spec_of
from srtkit.spec.platform import PlatformBuild

CASES = {
    "G4: 128 rows share 4,096 of 4,224 tokens": (128, 4224, 4096),
    "G3: 64 rows of 1,056 share none": (64, 1056, 0),
}
LARGEST_DIFFERENCE = 0.01


def share(bench: Bench, tokens: int) -> None:
    """Fill the plan again, with the first row's pages for the first tokens of all rows."""
    batch, view = bench.plan.step
    table, n = view.host_pages.copy(), tokens // view.page_tokens
    table[:, :n] = table[0, :n]
    bench.backend.fill(bench.plan, batch, replace(view, page_table=torch.from_numpy(table).cuda(), host_pages=table))


def main() -> int:
    """The command line. Ends with 1 if both ways differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = cuda.Options()
    facts = cuda.probe(options)[0]
    platform, spec = cuda.build(PlatformBuild(facts, options)), spec_of("bfloat16", 0)
    plain, shared = (fa3.Options(library=given.library, shared_prefixes=one) for one in (False, True))
    ways = {
        "fa3": (replace(fa3.srtkit_attention(), options=lambda: plain), 128),
        "fa3, shared prefixes": (replace(fa3.srtkit_attention(), options=lambda: shared), 128),
        "triton": (triton.srtkit_attention(), 64),
    }
    results: dict[str, dict[str, float]] = {}
    for name, (rows, context, tokens) in CASES.items():
        found, outs = {}, []
        for way, (descriptor, page) in ways.items():
            torch.manual_seed(0)
            bench = bench_of(descriptor, platform, facts, spec, rows, context - 1, 1, page)
            share(bench, tokens)
            found[way] = round(statistics.median(bench.times()), 1)
            bench.backend.attend(bench.plan, bench.layers[0], bench.q, bench.out)
            outs.append(bench.out.float())
        found["difference"] = float((outs[0] - outs[1]).norm() / outs[0].norm())
        results[name] = found
        print(name, found, flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return int(any(one["difference"] > LARGEST_DIFFERENCE for one in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
