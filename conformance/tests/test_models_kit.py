"""What the kit runs models on: attention against torch's, memory that is NaN until it is filled, ranks that sum."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from srtkit.spec.attention import AttentionSpec, LayerHandle
from srtkit_conformance.kits.models.attention import PADDING, Lengths, WholeSequences, attended
from srtkit_conformance.kits.models.ranks import ThreadGroup, ThreadRank
from srtkit_conformance.kits.models.rig import poisoned_memory

SPEC = AttentionSpec(4, 2, 8, 8, 0.3, "float64", "float64")
WINDOWED = AttentionSpec(4, 2, 8, 8, 0.3, "float64", "float64", window=3)


def qkv(tokens: int) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(3)
    return tuple(torch.randn(tokens, heads, 8, generator=random, dtype=torch.float64) for heads in (4, 2, 2))


@pytest.mark.parametrize("spec", [SPEC, WINDOWED], ids=["all", "window"])
def test_attention_is_that_of_torch(spec: AttentionSpec) -> None:
    q, k, v = qkv(9)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    if spec.window:
        seen &= torch.ones(9, 9, dtype=torch.bool).triu(1 - spec.window)
    wide = (one.transpose(0, 1) for one in (q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)))
    wanted = F.scaled_dot_product_attention(*wide, attn_mask=seen, scale=spec.scale).transpose(0, 1)
    torch.testing.assert_close(attended(spec, q, k, v), wanted)
    torch.testing.assert_close(attended(spec, q[6:], k, v), wanted[6:])


def test_sequences_are_kept_apart_and_padding_is_not_kept() -> None:
    q, k, v = qkv(9)
    backend, lengths, layer = WholeSequences(SPEC), Lengths(), LayerHandle(0, {})
    steps = [[(1, 2), (2, 1), (PADDING, 1)], [(2, 3), (1, 1), (PADDING, 1)]]
    found: dict[int, list[torch.Tensor]] = {}
    start = 0
    for rows in steps:
        lengths.rows = rows
        count = sum(n for _, n in rows)
        part = slice(start, start + count)
        out = torch.empty(count, 4, 8, dtype=torch.float64)
        backend.store(lengths, layer, k[part], v[part])
        backend.attend(lengths, layer, q[part], out)
        for (sequence, _), piece in zip(rows, torch.split(out, [n for _, n in rows]), strict=True):
            found.setdefault(sequence, []).append(piece)
        start += count
    for sequence, places in {1: [0, 1, 7], 2: [2, 4, 5, 6]}.items():
        wanted = attended(SPEC, q[places], k[places], v[places])
        torch.testing.assert_close(torch.cat(found[sequence]), wanted)
    torch.testing.assert_close(found[PADDING][1], attended(SPEC, q[8:], k[8:], v[8:]))


def test_memory_that_nobody_fills_is_nan() -> None:
    with poisoned_memory():
        assert torch.empty(5).isnan().all()
        assert torch.empty(5, dtype=torch.bfloat16).isnan().all()
    assert torch.get_deterministic_debug_mode() == 0


def test_ranks_that_are_threads_sum() -> None:
    group = ThreadGroup(2)

    def work(rank: int) -> torch.Tensor:
        mine = torch.full((3,), float(rank + 1))
        ThreadRank(group, rank).all_reduce(mine)
        return mine

    with ThreadPoolExecutor(2) as pool:
        assert all(bool((one == 3).all()) for one in pool.map(work, range(2)))
