"""The backend against Mamba2 as it is defined, in float64 and from a sequence's first token on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from srtkit.spec.attention import Batch
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.recurrent import RecurrentBackend, RecurrentBuild, RecurrentLayer, RecurrentSpec, Snapshots
from srtkit_plugin_recurrent_my_plugin import Options, srtkit_recurrent

FACTS = DeviceFacts("cpu", "test", "test", dtypes=frozenset({"float32", "bfloat16"}))
PLAIN = RecurrentSpec(
    "mamba2", heads=4, head_dim=8, state_dim=16, groups=2, conv_width=4, conv_channels=96, dtype="float32"
)
LIMITS = Limits(max_rows=4, max_tokens=64, max_context=64, page_size=16)
SLOTS = 8
STEPS = [[7, 5, 1], [1, 1, 9], [1, 1, 1], [2, 0, 4]]
"""Tokens of each row: prefill, mixed, decode, chunks."""


def build(spec: RecurrentSpec = PLAIN, options: Options | None = None) -> RecurrentBackend:
    return srtkit_recurrent().build(
        RecurrentBuild(
            spec,
            (0,),
            LIMITS,
            platform=None,  # type: ignore[arg-type]  # this backend asks nothing of it
            device_index=0,
            options=options or Options(),
        )
    )


@dataclass
class World:
    """Three sequences in slots 5, 2 and 7. Every slot that was never zeroed is NaN; slot 0 is finite scratch."""

    spec: RecurrentSpec
    random: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(5))
    slots: Tensor = field(default_factory=lambda: torch.tensor([5, 2, 7], dtype=torch.int32))

    def __post_init__(self) -> None:
        spec, dtype = self.spec, DTYPES[self.spec.dtype]
        planes = {}
        for plane in srtkit_recurrent().state_layouts(spec):
            planes[plane.name] = torch.full((SLOTS, *plane.shape), float("nan"), dtype=DTYPES[plane.dtype])
            planes[plane.name][0] = 3.0
        weights = {
            "conv_weight": self.draw(spec.conv_channels, spec.conv_width).to(dtype) / 2,
            "conv_bias": self.draw(spec.conv_channels).to(dtype),
            "a": -self.draw(spec.heads).abs() - 0.1,
            "d": self.draw(spec.heads),
        }
        self.layer = RecurrentLayer(0, planes, weights)
        self.seen: list[list[tuple[Tensor, Tensor]]] = [[], [], []]

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def batch(self, lengths: list[int]) -> Batch:
        host_q = np.array(lengths, np.int32)
        context = np.array([len(seen) for seen in self.seen], np.int32) + host_q
        return Batch(
            rows=3,
            tokens=int(host_q.sum()),
            leading=0,
            q_len=0,
            cu_q=torch.tensor([0, *host_q.cumsum()], dtype=torch.int32),
            context=torch.from_numpy(context),
            positions=torch.cat([torch.arange(end - n, end) for end, n in zip(context, lengths, strict=True)]).int(),
            slots=torch.arange(1, 4, dtype=torch.int32),
            host_q=host_q,
            host_context=context,
        )

    def inputs(self, lengths: list[int]) -> dict[str, Tensor]:
        """New tokens, which the sequences have then seen."""
        tokens = sum(lengths)
        xbc = self.draw(tokens, self.spec.conv_channels).to(DTYPES[self.spec.dtype])
        dt = self.draw(tokens, self.spec.heads).abs() / 2
        each = list(zip(xbc, dt, strict=True))
        for seen, n in zip(self.seen, lengths, strict=True):
            seen += each[:n]
            del each[:n]
        return {"xbc": xbc, "dt": dt}

    def step(self, backend: RecurrentBackend, lengths: list[int], snapshots: Snapshots | None = None) -> None:
        """One step, and its results against the definition."""
        plan = backend.new_plan(LIMITS)
        batch = self.batch(lengths)
        inputs = self.inputs(lengths)
        out = torch.full((sum(lengths), self.spec.heads, self.spec.head_dim), float("nan"))
        out = out.to(DTYPES[self.spec.dtype])
        backend.fill(plan, batch, self.slots, snapshots, 0)
        backend.step(plan, self.layer, inputs, out)
        wanted = [self.defined(seen)[len(seen) - n :] for seen, n in zip(self.seen, lengths, strict=True)]
        error = (out.double() - torch.cat(wanted)).norm() / torch.cat(wanted).norm()
        assert error < (1e-6 if self.spec.dtype == "float32" else 1e-2)
        plan.close()

    def defined(self, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """What a sequence must give for all its tokens, float64."""
        spec, weights = self.spec, {name: values.double() for name, values in self.layer.weights.items()}
        xs = [torch.zeros(spec.conv_channels).double()] * (spec.conv_width - 1) + [x.double() for x, _ in seen]
        state = torch.zeros(spec.heads, spec.head_dim, spec.state_dim).double()
        out = []
        for number, (_, dt) in enumerate(seen):
            window = torch.stack(xs[number : number + spec.conv_width], 1)
            channel = (window * weights["conv_weight"]).sum(1) + weights["conv_bias"]
            channel = channel * torch.sigmoid(channel)
            x = channel[: spec.heads * spec.head_dim].view(spec.heads, spec.head_dim)
            b, c = channel[spec.heads * spec.head_dim :].view(2, spec.groups, spec.state_dim)
            for head in range(spec.heads):
                group = head // (spec.heads // spec.groups)
                fade = torch.exp(dt[head].double() * weights["a"][head])
                state[head] = fade * state[head] + dt[head].double() * torch.outer(x[head], b[group])
            read = torch.stack([state[head] @ c[head // (spec.heads // spec.groups)] for head in range(spec.heads)])
            out.append(read + weights["d"][:, None] * x)
        return torch.stack(out)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [Options(), Options(compute_dtype="float64")])
def test_prompts_chunks_and_decode(dtype: str, options: Options) -> None:
    world = World(replace(PLAIN, dtype=dtype))
    backend = build(world.spec, options)
    backend.zero(world.layer, world.slots)
    for lengths in STEPS:
        world.step(backend, lengths)
    backend.close()


def test_a_fork_and_a_snapshot_go_on_by_themselves() -> None:
    world = World(PLAIN)
    backend = build()
    backend.zero(world.layer, world.slots)
    at_the_end = Snapshots(*(torch.tensor([value], dtype=torch.int32) for value in (0, 6, 1)))
    world.step(backend, [6, 3, 4], at_the_end)
    backend.fork(world.layer, torch.tensor([2], dtype=torch.int32), torch.tensor([4], dtype=torch.int32))
    world.slots = torch.tensor([1, 4, 7], dtype=torch.int32)
    world.step(backend, [2, 5, 1])


def test_padding_is_finite_and_steps_nothing() -> None:
    world = World(PLAIN)
    backend = build()
    before = {name: plane.clone() for name, plane in world.layer.planes.items()}
    out = torch.full((6, PLAIN.heads, PLAIN.head_dim), float("nan"))
    plan = backend.new_plan(LIMITS)
    backend.fill(plan, world.batch([1, 1, 4]), torch.zeros(3, dtype=torch.int32), None, 0)
    backend.step(plan, world.layer, world.inputs([1, 1, 4]), out)
    assert out.isfinite().all()
    for name, plane in world.layer.planes.items():
        torch.testing.assert_close(plane, before[name], rtol=0, atol=0, equal_nan=True)


def test_what_is_not_declared_is_refused() -> None:
    can = srtkit_recurrent().capabilities(FACTS)
    assert can.features == {"mamba2"}
    assert can.dtypes == {"float32", "bfloat16"}
    with pytest.raises(Unsupported, match="gated_delta"):
        build(replace(PLAIN, kind="gated_delta"))
    with pytest.raises(Unsupported, match="bfloat16"):
        build(replace(PLAIN, state_dtype="bfloat16"))
    world, backend = World(PLAIN), build()
    plan, batch = backend.new_plan(LIMITS), world.batch([4, 1, 1])
    inner = Snapshots(*(torch.tensor([value], dtype=torch.int32) for value in (0, 2, 1)))
    with pytest.raises(Unsupported, match="inside a row"):
        backend.fill(plan, batch, world.slots, inner, 0)
    with pytest.raises(Unsupported, match="kept states"):
        backend.fill(plan, batch, world.slots, None, 2)
    with pytest.raises(Unsupported, match="accept"):
        backend.accept(plan, world.layer, torch.ones(3, dtype=torch.int32))
    batch.features = frozenset({"tree_mask"})
    with pytest.raises(Unsupported, match="tree_mask"):
        backend.fill(plan, batch, world.slots, None, 0)
