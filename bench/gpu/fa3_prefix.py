"""A shared prefix by two calls of FlashAttention-3 that are merged, beside one call: what it gains and what it costs.

    python -m bench.gpu.fa3_prefix [--library FILE.so] [--out FILE.json]

Decode rows of 32 query and 8 KV heads of 128 in bfloat16, pages of 128. Two calls: rows in a group attend to the shared
pages together, each row to its own, and a kernel merges both. A recorded step launches all of that whether or not rows
share anything, so the cost is that where none do. Microseconds a layer, in a graph of many layers.
"""

# ruff: noqa: N803 - constants of a kernel are in capitals, as everywhere in Triton
from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from srtkit_plugin_attention_fa3.library import find

Q_HEADS, KV_HEADS, HEAD, PAGE = 32, 8, 128, 128
GROUPS = 16
"""Groups that a recorded step has room for."""
LAYERS = 40
CASES = {"G4: 128 rows share 4,096 of 4,224 tokens": (128, 4096, 128), "G3: 64 rows of 1,056 share none": (64, 0, 1056)}


@triton.jit  # type: ignore[untyped-decorator]
def gather_kernel(q, rows, out, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Grid (members): the queries of a group's rows beside each other."""
    member, i = tl.program_id(0), tl.arange(0, WIDTH)
    tl.store(out + member * WIDTH + i, tl.load(q + tl.load(rows + member) * WIDTH + i))


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(out, lse, other, other_lse, rows, members, SIZE: tl.constexpr, HEADS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Grid (rows, heads): what a member has of its group joins its own, by their log-sums [heads, rows]."""
    member, head, i = tl.program_id(0), tl.program_id(1), tl.arange(0, SIZE)
    n = tl.num_programs(0)
    if member < tl.load(members):
        row = tl.load(rows + member)
        mine, theirs = tl.load(lse + head * n + row), tl.load(other_lse + head * n + member)
        share = 1 / (1 + tl.exp(theirs - mine))
        at = out + (row * HEADS + head) * SIZE + i
        both = tl.load(at) * share + tl.load(other + (member * HEADS + head) * SIZE + i) * (1 - share)
        tl.store(at, both.to(out.dtype.element_ty))


class Step:
    """Rows with a shared prefix and tokens of their own, over enough layers that the L2 cache does not help."""

    def __init__(self, forward: Any, rows: int, shared: int, own: int) -> None:
        self.forward, self.rows, self.shared = forward, rows, shared
        ints = {"dtype": torch.int32, "device": "cuda"}
        pages = shared // PAGE + rows * -(-own // PAGE) + 1
        order = torch.randperm(pages - 1, device="cuda").int() + 1
        prefix, rest = order[: shared // PAGE], order[shared // PAGE :].view(rows, -1)
        self.whole = torch.cat((prefix.expand(rows, -1), rest), 1).contiguous()
        self.own, self.prefix = rest.contiguous(), torch.zeros(GROUPS, max(1, shared // PAGE), **ints)
        self.prefix[0, : len(prefix)] = prefix
        self.length, self.own_length = (torch.full((rows,), n, **ints) for n in (shared + own, own))
        self.prefix_length = torch.zeros(GROUPS, **ints)
        self.prefix_length[0] = shared
        self.cu = torch.arange(rows + 1, **ints)
        n = rows if shared else 0
        self.members, self.group_cu = torch.tensor([n], **ints), torch.full((GROUPS + 1,), n, **ints)
        self.group_cu[0] = 0
        self.order = torch.arange(rows, **ints)
        shape = (pages, PAGE, KV_HEADS, HEAD)
        self.layers = [tuple(torch.randn(shape, device="cuda").bfloat16() for _ in "kv") for _ in range(LAYERS // 8)]
        self.q = torch.randn(rows, Q_HEADS, HEAD, device="cuda").bfloat16()
        self.gathered, self.out, self.other = (torch.empty_like(self.q) for _ in range(3))

    def one(self, k: Tensor, v: Tensor) -> None:
        """A call over whole rows."""
        self._call(self.q, k, v, self.out, self.cu, 1, self.length, self.whole, causal=True)

    def two(self, k: Tensor, v: Tensor) -> None:
        """Two calls, and what joins them."""
        gather_kernel[(self.rows,)](self.q, self.order, self.gathered, WIDTH=Q_HEADS * HEAD)
        shared = self._call(
            self.gathered, k, v, self.other, self.group_cu, self.rows, self.prefix_length, self.prefix, causal=False
        )
        own = self._call(self.q, k, v, self.out, self.cu, 1, self.own_length, self.own, causal=True)
        merge_kernel[(self.rows, Q_HEADS)](
            self.out, own, self.other, shared, self.order, self.members, SIZE=HEAD, HEADS=Q_HEADS
        )

    def _call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        cu: Tensor,
        most: int,
        used: Tensor,
        table: Tensor,
        *,
        causal: bool,
    ) -> Tensor:
        mask = {"is_causal": causal, "window_size_left": -1, "window_size_right": -1, "num_splits": 0, "softcap": 0.0}
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": None, "max_seqlen_q": most, "seqused_k": used}
        lengths |= {"max_seqlen_k": table.shape[1] * PAGE, "page_table": table, "scheduler_metadata": None}
        lse: Tensor = self.forward(q=q, k=k, v=v, q_v=None, out=out, softmax_scale=HEAD**-0.5, **lengths, **mask)[1]
        return lse

    def microseconds(self, attend: Callable[[Tensor, Tensor], None]) -> float:
        """A layer's, the median of ten replays."""
        for k, v in self.layers:
            attend(k, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(LAYERS):
                attend(*self.layers[i % len(self.layers)])
        times = []
        for _ in range(10):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / LAYERS)
        return round(sorted(times)[5], 1)


def main() -> int:
    """The command line. Ends with 1 if both ways differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    forward = find(given.library).forward
    results: dict[str, dict[str, float]] = {}
    for name, (rows, shared, own) in CASES.items():
        step = Step(forward, rows, shared, own)
        found = {"one call": step.microseconds(step.one), "two calls": step.microseconds(step.two)}
        step.one(*step.layers[0])
        whole = step.out.float()
        step.two(*step.layers[0])
        found["relative difference"] = float((step.out.float() - whole).norm() / whole.norm())
        results[name] = found
        print(name, found, flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return int(any(one["relative difference"] > 0.01 for one in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
