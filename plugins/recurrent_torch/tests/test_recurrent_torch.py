"""Against the layers of transformers, and what only this plugin promises. The rest is the conformance suite's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from srtkit.spec.attention import Batch
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.platform import Platform
from srtkit.spec.recurrent import RecurrentBuild, RecurrentLayer, RecurrentSpec
from srtkit_plugin_recurrent_torch import Options, srtkit_recurrent
from srtkit_plugin_recurrent_torch.backend import TorchRecurrent
from srtkit_plugin_recurrent_torch.plan import TorchPlan

SIZES = {"heads": 4, "head_dim": 16, "state_dim": 8, "groups": 2, "conv_width": 4, "conv_channels": 96}
MAMBA2 = RecurrentSpec("mamba2", **SIZES, dtype="float32")  # type: ignore[arg-type]
GATED_DELTA = replace(MAMBA2, kind="gated_delta")
LIMITS = Limits(max_rows=4, max_tokens=256, max_context=256, page_size=16)
TOKENS = 75
PIECES = [[TOKENS], [40, 1, 1, 2, 31]]
PLATFORM = cast("Platform", SimpleNamespace())


def backend(spec: RecurrentSpec, options: Options | None = None) -> TorchRecurrent:
    built = srtkit_recurrent().build(RecurrentBuild(spec, (0,), LIMITS, PLATFORM, 0, options or Options()))
    assert isinstance(built, TorchRecurrent)
    return built


def batch(lengths: Sequence[int], leading: int = 0) -> Batch:
    host_q = np.array(lengths, np.int32)
    column = torch.zeros(len(lengths), dtype=torch.int32)
    ends = torch.tensor([0, *host_q.cumsum()], dtype=torch.int32)
    positions = torch.zeros(int(ends[-1]), dtype=torch.int32)
    q_len = int(host_q[0]) if leading else 0
    return Batch(
        len(lengths), int(ends[-1]), leading, q_len, ends, column, positions, column, host_q, np.zeros_like(host_q)
    )


def run(
    spec: RecurrentSpec, weights: Mapping[str, Tensor], inputs: Mapping[str, Tensor], pieces: Sequence[int], chunk: int
) -> Tensor:
    """One sequence in slot 3, in pieces: out [n, heads, head_dim]."""
    planes = {
        plane.name: torch.full((5, *plane.shape), torch.nan, dtype=DTYPES[plane.dtype])
        for plane in srtkit_recurrent().state_layouts(spec)
    }
    layer, built = RecurrentLayer(0, planes, weights), backend(spec, Options(chunk=chunk))
    slots = torch.tensor([3], dtype=torch.int32)
    built.zero(layer, slots)
    plan = built.new_plan(LIMITS)
    out = torch.empty(sum(pieces), spec.heads, spec.head_dim)
    begin = 0
    for n in pieces:
        built.fill(plan, batch([n]), slots, None, 0)
        some = {name: values[begin : begin + n] for name, values in inputs.items()}
        built.step(plan, layer, some, out[begin : begin + n])
        begin += n
    return out


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("chunk", [1, 7, 64])
@torch.inference_mode()
def test_it_is_the_mamba2_of_transformers(pieces: list[int], chunk: int) -> None:
    torch.manual_seed(1)
    config = Mamba2Config(hidden_size=32, num_heads=4, head_dim=16, state_size=8, n_groups=2, chunk_size=16)
    mixer = Mamba2Mixer(config, 0)
    torch.nn.init.normal_(mixer.D)
    hidden = torch.randn(1, TOKENS, 32)
    gate, xbc, dt = mixer.in_proj(hidden[0]).split([64, 96, 4], -1)
    assert mixer.conv1d.bias is not None
    weights = {
        "conv_weight": mixer.conv1d.weight.squeeze(1),
        "conv_bias": mixer.conv1d.bias,
        "a": -mixer.A_log.float().exp(),
        "d": mixer.D,
    }
    inputs = {"xbc": xbc, "dt": torch.nn.functional.softplus(dt + mixer.dt_bias)}
    out = run(MAMBA2, weights, inputs, pieces, chunk)
    torch.testing.assert_close(mixer.out_proj(mixer.norm(out.flatten(1), gate)), mixer(hidden)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pieces", PIECES)
@pytest.mark.parametrize("chunk", [1, 7, 64])
@torch.inference_mode()
def test_it_is_the_gated_delta_net_of_transformers(pieces: list[int], chunk: int) -> None:
    torch.manual_seed(1)
    config = Qwen3NextConfig(
        hidden_size=32,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=16,
    )
    net = Qwen3NextGatedDeltaNet(config, 0)
    hidden = torch.randn(1, TOKENS, 32)
    projected = net.in_proj_qkvz(hidden), net.in_proj_ba(hidden)
    q, k, v, z, b, a = net.fix_query_key_value_ordering(*projected)  # type: ignore[no-untyped-call]
    inputs = {
        "qkv": torch.cat([one[0].flatten(1) for one in (q, k, v)], -1),
        "beta": b[0].sigmoid(),
        "decay": -net.A_log.float().exp() * torch.nn.functional.softplus(a[0].float() + net.dt_bias),
    }
    out = run(GATED_DELTA, {"conv_weight": net.conv1d.weight.squeeze(1)}, inputs, pieces, chunk)
    normed = net.norm(out.flatten(0, 1), z[0].flatten(0, 1)).view(TOKENS, -1)
    torch.testing.assert_close(net.out_proj(normed), net(hidden)[0], rtol=1e-5, atol=1e-5)


def test_rows_that_are_alike_are_one_group() -> None:
    """A decode step of any size costs the same few operations."""
    built, slots = backend(MAMBA2), torch.tensor([1, 2, 3, 4, 0], dtype=torch.int32)
    plan = built.new_plan(LIMITS)
    built.fill(plan, batch([1, 1, 5, 1, 1], leading=2), slots, None, 0)
    assert isinstance(plan, TorchPlan)
    assert [group.rows.tolist() for group in plan.groups] == [[0, 1, 3], [2]]
    assert plan.padding.tolist() == [8]
    built.fill(plan, batch([3, 3, 3, 1, 0], leading=2), slots, None, keep=2)
    assert [group.rows.tolist() for group in plan.groups] == [[0, 1], [2], [3]]
    assert [[cut.offset for cut in group.cuts] for group in plan.groups] == [[1, 2, 3], [3], [1]]
    assert [[cut.kept for cut in group.cuts] for group in plan.groups] == [[True, True, False], [False], [False]]


def test_states_go_back_only_where_some_were_kept() -> None:
    built = backend(MAMBA2)
    plan, slots = built.new_plan(LIMITS), torch.tensor([1], dtype=torch.int32)
    built.fill(plan, batch([2], leading=1), slots, None, 0)
    with pytest.raises(Unsupported, match="kept none"):
        built.accept(plan, RecurrentLayer(0, {}, {}), slots)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"dtype": "float64"}, "does not compute in float64"),
        ({"state_dtype": "int8"}, "does not keep states in int8"),
        ({"groups": 3}, "do not share 3 groups evenly"),
        ({"conv_channels": 97}, "97 convolved channels .* 96 do"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change: Mapping[str, object], cause: str) -> None:
    with pytest.raises(Unsupported, match=cause):
        backend(replace(MAMBA2, **change))  # type: ignore[arg-type]


def test_it_declares_what_the_device_has() -> None:
    can = srtkit_recurrent().capabilities(DeviceFacts("cpu", "any", "any", dtypes=frozenset({"float32", "float64"})))
    assert can.dtypes == {"float32"}
    assert can.features == {"mamba2", "gated_delta"}
    assert can.inner_snapshots
    assert can.keep
