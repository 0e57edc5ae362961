"""The backend against attention computed token by token in float64, from sequences that never saw a page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionSpec,
    Batch,
    GroupView,
    LayerGroup,
    LayerHandle,
    Rows,
    check_spec,
)
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit_plugin_attention_my_plugin import Options, srtkit_attention

FACTS = DeviceFacts("cpu", "test", "test", dtypes=frozenset({"float32", "bfloat16"}))
PLAIN = AttentionSpec(4, 2, head_dim=16, v_head_dim=16, scale=0.25, dtype="float32", kv_dtype="float32")
PAGES = 64
STEPS = [([7, 5, 1], 0), ([1, 1, 9], 2), ([1, 1, 1], 3), ([3, 1, 4], 0)]
"""Query tokens of each row, and how many rows lead: prefill, mixed, decode, chunks."""


@dataclass
class World:
    """Three sequences in shuffled pages. Every slot that was never written is NaN; page 0 is finite scratch."""

    spec: AttentionSpec
    page_tokens: int
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))
    contexts: list[int] = field(default_factory=lambda: [0, 0, 0])

    def __post_init__(self) -> None:
        spec, kv = self.spec, DTYPES[self.spec.kv_dtype]
        self.k = torch.full((PAGES, self.page_tokens, spec.kv_heads, spec.head_dim), float("nan"), dtype=kv)
        self.v = torch.full((PAGES, self.page_tokens, spec.kv_heads, spec.v_head_dim), float("nan"), dtype=kv)
        self.k[0] = self.v[0] = 1e4
        self.handle = LayerHandle(0, {"k": self.k, "v": self.v})
        table = torch.randperm(PAGES - 1, generator=self.random) + 1
        self.table = table[: 3 * (PAGES // 4)].reshape(3, -1).int()
        self.dense: list[list[Tensor]] = [[], [], []]

    @property
    def limits(self) -> Limits:
        return Limits(max_rows=4, max_tokens=64, max_context=64, page_size=self.page_tokens)

    def backend(self, options: Options) -> AttentionBackend:
        descriptor = srtkit_attention()
        (layout,) = descriptor.kv_layouts(self.spec, self.page_tokens, FACTS)
        return descriptor.build(
            AttentionBuild(
                group=LayerGroup("full.0", self.spec, (0,)),
                layout=layout,
                limits=self.limits,
                platform=None,  # type: ignore[arg-type]  # this backend asks nothing of it
                device_index=0,
                options=options,
            )
        )

    def random_values(self, tokens: int, heads: int, size: int) -> Tensor:
        return torch.randn(tokens, heads, size, generator=self.random).to(DTYPES[self.spec.dtype])

    def step(self, lengths: list[int], leading: int) -> tuple[Batch, GroupView]:
        """The next step's batch and view."""
        starts, self.contexts = self.contexts, [a + b for a, b in zip(self.contexts, lengths, strict=True)]
        spans = list(zip(starts, self.contexts, strict=True))
        positions = torch.cat([torch.arange(*span) for span in spans])
        owner = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
        slots = self.table[owner, positions // self.page_tokens] * self.page_tokens + positions % self.page_tokens
        host_q, host_context = np.array(lengths, np.int32), np.array(self.contexts, np.int32)
        batch = Batch(
            rows=3,
            tokens=len(positions),
            leading=leading,
            q_len=1 if leading else 0,
            cu_q=torch.tensor([0, *host_q.cumsum()], dtype=torch.int32),
            context=torch.from_numpy(host_context),
            positions=positions.int(),
            slots=torch.arange(1, 4, dtype=torch.int32),
            host_q=host_q,
            host_context=host_context,
        )
        return batch, GroupView(self.page_tokens, self.table, slots.int(), self.table.numpy())


def expected(q: Tensor, stored: list[Tensor], spec: AttentionSpec) -> Tensor:
    """One token's attention: q [q_heads, d] over tokens [heads, d + dv], in float64."""
    tokens = torch.stack(stored).double()
    k, v = tokens[..., : spec.head_dim], tokens[..., spec.head_dim :]
    out = torch.empty(spec.q_heads, spec.v_head_dim, dtype=torch.float64)
    for head in range(spec.q_heads):
        shared = head * spec.kv_heads // spec.q_heads
        weights = torch.exp(k[:, shared] @ q[head].double() * spec.scale)
        out[head] = weights @ v[:, shared] / weights.sum()
    return out


@pytest.mark.parametrize("page_tokens", [4, 16])
@pytest.mark.parametrize(
    ("spec", "options", "limit"),
    [
        (PLAIN, Options(), 3e-7),
        (PLAIN, Options(score_dtype="float64"), 4e-8),
        (replace(PLAIN, q_heads=6, kv_heads=1, head_dim=8, v_head_dim=24), Options(), 3e-7),
        (replace(PLAIN, dtype="bfloat16", kv_dtype="bfloat16"), Options(), 3e-3),
    ],
    ids=["plain", "float64 scores", "one KV head", "bfloat16"],
)
def test_equals_attention_without_pages(spec: AttentionSpec, options: Options, limit: float, page_tokens: int) -> None:
    world = World(spec, page_tokens)
    backend = world.backend(options)
    plan = backend.new_plan(world.limits)
    for lengths, leading in STEPS:
        batch, view = world.step(lengths, leading)
        q = world.random_values(batch.tokens, spec.q_heads, spec.head_dim)
        k = world.random_values(batch.tokens, spec.kv_heads, spec.head_dim)
        v = world.random_values(batch.tokens, spec.kv_heads, spec.v_head_dim)
        wanted, token = [], 0
        for row, length in enumerate(lengths):
            for _ in range(length):
                world.dense[row].append(torch.cat((k[token], v[token]), -1))
                wanted.append(expected(q[token], world.dense[row], spec))
                token += 1
        out = torch.full((batch.tokens, spec.q_heads, spec.v_head_dim), float("nan"), dtype=q.dtype)
        backend.fill(plan, batch, view)
        backend.store(plan, world.handle, k, v)
        backend.attend(plan, world.handle, q, out, rows=Rows.LEADING)
        assert out[: sum(lengths[:leading])].isfinite().all()
        assert out[sum(lengths[:leading]) :].isnan().all()
        backend.attend(plan, world.handle, q, out, rows=Rows.REST)
        error = (out.double() - torch.stack(wanted)).norm() / torch.stack(wanted).norm()
        assert error < limit


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"window": 8}, "window"),
        ({"soft_cap": 30.0}, "soft_cap"),
        ({"sinks": True}, "sinks"),
        ({"kv_dtype": "float8_e4m3fn"}, "fp8_kv"),
        ({"dtype": "float16"}, "float16"),
        ({"head_dim": 1024}, "1024"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(change: dict[str, object], reason: str) -> None:
    can = srtkit_attention().capabilities(FACTS)
    assert check_spec("attention:my-plugin", PLAIN, can) == ""
    assert reason in check_spec("attention:my-plugin", replace(PLAIN, **change), can)  # type: ignore[arg-type]


def test_a_tree_mask_and_estimated_lengths_are_refused() -> None:
    world = World(PLAIN, 4)
    backend = world.backend(Options())
    batch, view = world.step([1, 1, 1], 3)
    for other in (replace(batch, features=frozenset({"tree_mask"})), replace(batch, exact=False)):
        with pytest.raises(Unsupported):
            backend.fill(backend.new_plan(world.limits), other, view)
