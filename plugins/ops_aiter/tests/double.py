"""A double of aiter's operators: refuses what aiter's sources refuse, computes in float32. Never shipped.

`modules(version)` stands for an installed aiter: functions with the recorded parameters, over the arithmetic here.
Where aiter's kernels write out of bounds without a word, the double raises.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

TABLE: dict[str, dict[str, str]] = json.loads(
    files("srtkit_plugin_ops_aiter").joinpath("signatures.json").read_text("utf-8")
)["versions"]
OLD, HEAD = sorted(TABLE)
"""The wheel's version, and what was the head of aiter's repository."""
Log = list[tuple[str, dict[str, Any]]]
ENUMERATIONS = {
    "ActivationType": types.SimpleNamespace(Silu="silu"),
    "QuantType": types.SimpleNamespace(No="no"),
    "GateMode": types.SimpleNamespace(SEPARATED=types.SimpleNamespace(value="separated")),
}
"""What defaults are named after."""
SIXTEEN_BITS = (torch.float16, torch.bfloat16)


class Refused(Exception):
    """aiter would raise, end the process, or compute garbage."""


def modules(version: str, log: Log | None = None) -> dict[str, types.ModuleType]:
    """Modules by name, for `sys.modules`. Calls are logged by name, with what was given by keyword."""
    made: dict[str, types.ModuleType] = {name: types.ModuleType(name) for name in ("aiter", "aiter.ops")}
    for where, parameters in TABLE[version].items():
        path, _, name = where.partition(":")
        module = made.setdefault(path.removesuffix(".py").replace("/", "."), types.ModuleType(path))
        vars(module)[name] = _function(name, signature(parameters), version, [] if log is None else log)
    return made


def signature(parameters: str) -> inspect.Signature:
    """Of a function with these parameters."""
    scope: dict[str, Any] = dict(ENUMERATIONS)
    exec(f"def function{parameters}: ...", scope)
    return inspect.signature(scope["function"])


def _function(name: str, parameters: inspect.Signature, version: str, log: Log) -> Callable[..., Any]:
    def function(*arguments: Any, **given: Any) -> Any:
        bound = parameters.bind(*arguments, **given)
        log.append((name, given))
        bound.apply_defaults()
        return OPERATORS[name](version, bound.arguments)

    return function


def _expect(right: bool, why: str) -> None:
    if not right:
        raise Refused(why)


def _norm(version: str, x: Tensor, weight: Tensor, others: Mapping[str, Tensor]) -> None:
    """What both norms ask for. In head's version whatever is not the input must be without gaps."""
    _expect(x.dim() == 2 and x.stride(1) == 1, "the input is [m, n] with dense rows")
    _expect(x.shape[0] > 0, "an empty grid")
    _expect(x.dtype in SIXTEEN_BITS, f"ck rmsnorm2d takes fp16 and bf16, not {x.dtype}")
    _expect(weight.is_contiguous() and weight.shape == x.shape[1:] and weight.dtype == x.dtype, "weight [n]")
    for name, one in others.items():
        _expect(one.shape == x.shape and one.dtype == x.dtype, f"{name} is like the input")
        _expect(one.is_contiguous() if version == HEAD else one.stride(1) == 1, f"{name} is dense")


def _rms_norm(version: str, given: dict[str, Any]) -> Tensor:
    x = given["input"]
    _norm(version, x, given["weight"], {})
    return _normed(x.float(), given["weight"], given["epsilon"]).to(x.dtype)


def _with_add(version: str, given: dict[str, Any]) -> None:
    """The norm is that of the sum before it is rounded. `residual_out` may be `residual_in`, no other two the same."""
    x, before, after, out = (given[name] for name in ("input", "residual_in", "residual_out", "out"))
    _norm(version, x, given["weight"], {"residual_in": before, "residual_out": after, "out": out})
    _expect(not given.get("gemma_norm"), "a weight that is one less")
    _expect(len({one.data_ptr() for one in (x, after, out)}) == 3, "results do not share memory with the input")
    total = x.float() + before.float()
    after.copy_(total)
    out.copy_(_normed(total, given["weight"], given["epsilon"]))


def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def _silu_and_mul(version: str, given: dict[str, Any]) -> None:
    out, x = given["out"], given["input"]
    size = x.shape[-1] // 2
    _expect(x.is_contiguous() and out.is_contiguous(), "strides are not read")
    _expect(x.numel() > 0, "an empty grid")
    _expect(x.dtype in SIXTEEN_BITS and out.dtype == x.dtype, f"fp16 and bf16, not {x.dtype}")
    _expect(out.shape == (*x.shape[:-1], size), "out is half as wide")
    vector = 1 << max(size // 64 - 1, 0).bit_length()
    vector = min(max(vector, 1 if version == OLD else 2), 16)
    _expect(size % vector == 0, f"vectors of {vector} run over a row of {size}")
    gate, up = x.float().chunk(2, -1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def _rope(version: str, given: dict[str, Any]) -> None:
    """[s, b, h, d] in place; tables [rows, 1, 1, R / 2]; a position beyond the tables leaves its token as it is."""
    cos, sin, positions = given["cos"], given["sin"], given["positions"]
    _expect(positions.dtype == torch.int64 and positions.dim() == 2 and positions.is_contiguous(), "positions [s, b]")
    _expect(cos.is_contiguous() and sin.is_contiguous() and cos.shape == sin.shape, "tables without gaps")
    _expect(cos.dim() == 4 and cos.shape[1:3] == (1, 1), "tables [rows, 1, 1, f]")
    _expect(given["rotate_style"] in (0, 1), "0 is NeoX, 1 GPT-J")
    half = cos.shape[-1] if given["reuse_freqs_front_part"] else cos.shape[-1] // 2
    for x in (given["input_x"], given["input_y"]):
        _expect(x.dim() == 4 and x.shape[:2] == positions.shape and x.shape[0] > 0, "[s, b, h, d]")
        _expect(x.dtype == given["input_x"].dtype and cos.dtype in (x.dtype, torch.float32), "one dtype")
        _expect(2 * half <= x.shape[-1], "the table is wider than a head")
        _turn(x, cos, sin, positions, half, given)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, half: int, given: Mapping[str, Any]) -> None:
    start = x.shape[-1] - 2 * half if given["nope_first"] else 0
    part = x[..., start : start + 2 * half]
    neox = given["rotate_style"] == 0
    first, second = (part[..., :half], part[..., half:]) if neox else (part[..., ::2], part[..., 1::2])
    known = (positions >= 0) & (positions < len(cos))
    rows = positions.clamp(0, len(cos) - 1)
    c, s = (table[rows, 0, 0].float().unsqueeze(2)[..., :half] for table in (cos, sin))
    a, b = first.float(), second.float()
    kept = known[:, :, None, None]
    first.copy_(torch.where(kept, a * c - b * s, a))
    second.copy_(torch.where(kept, b * c + a * s, b))


def _topk_softmax(version: str, given: dict[str, Any]) -> None:
    """Of equal ones the first. NaN beside numbers would be left out of a row that is made to sum to 1."""
    logits, weights, experts, places = (
        given[name] for name in ("gating_output", "topk_weights", "topk_indices", "token_expert_indices")
    )
    tokens, count = logits.shape
    _expect(logits.is_contiguous() and tokens > 0, "[tokens, experts], strides are not read")
    _expect(logits.dtype in (*SIXTEEN_BITS, torch.float32), f"no {logits.dtype}")
    _expect(count.bit_count() == 1 and count <= 256, "the path for other numbers reads NaN as a number")
    _expect(not given.get("num_shared_experts"), "experts that all tokens share")
    shape, k = weights.shape, weights.shape[-1]
    _expect(shape == (tokens, k) and 0 < k <= count and weights.dtype == torch.float32, "weights float32 [tokens, k]")
    for one in (experts, places):
        _expect(one.shape == shape and one.dtype == torch.int32, "numbers int32 [tokens, k]")
    _expect(all(one.is_contiguous() for one in (weights, experts, places)), "results without gaps")
    nan = logits.isnan()
    _expect(torch.equal(nan.any(-1), nan.all(-1)), "NaN beside numbers")
    likely, order = torch.softmax(logits.float(), -1).sort(dim=-1, descending=True, stable=True)
    chosen = likely[:, :k]
    weights.copy_(chosen / chosen.sum(-1, keepdim=True) if given["need_renorm"] else chosen)
    experts.copy_(order[:, :k])
    places.copy_(torch.arange(k) * tokens + torch.arange(tokens).unsqueeze(1))


def _shuffle_weight(version: str, given: dict[str, Any]) -> Tensor:
    """[..., n, k] in blocks of 16 by 32; of a block, 8 neighbours in k of each row, then the next 8."""
    x = given["x"]
    _expect(given["layout"] == (16, 16) and x.dtype in SIXTEEN_BITS and x.is_contiguous(), "16 bits, 16 by 16")
    _expect(x.shape[-2] % 16 == 0 and x.shape[-1] % 32 == 0, "whole blocks")
    made: Tensor = x.view(-1, x.shape[-2] // 16, 16, x.shape[-1] // 32, 4, 8).transpose(2, 3).transpose(3, 4)
    made = made.contiguous().view(x.shape)
    made.is_shuffled = True  # type: ignore[attr-defined]
    return made


def _fused_moe(version: str, given: dict[str, Any]) -> Tensor:
    """Reads weights as shuffled: the old version always, head's where they say so."""
    x, gate_up, down, weights, experts = (
        given[name] for name in ("hidden_states", "w1", "w2", "topk_weight", "topk_ids")
    )
    tokens, hidden = x.shape
    count, _, size = down.shape
    _expect(tokens > 0 and all(one.is_contiguous() for one in (x, gate_up, down, weights, experts)), "without gaps")
    _expect(x.dtype in SIXTEEN_BITS and x.dtype == gate_up.dtype == down.dtype, f"fp16 and bf16, not {x.dtype}")
    _expect(gate_up.shape == (count, 2 * size, hidden) and down.shape[1] == hidden, "[e, 2 i, h] and [e, h, i]")
    _expect(hidden % 128 == 0 and size % 128 == 0, f"tiles of 128 run over {hidden} or {size}")
    _expect(gate_up.numel() < 2**31, "offsets of 32 bits")
    _expect(weights.dtype == torch.float32 and experts.dtype == torch.int32, "weights float32, numbers int32")
    _expect(weights.shape == experts.shape == (tokens, weights.shape[-1]), "[tokens, k]")
    _expect(bool(((experts >= 0) & (experts < count)).all()), "an expert that there is not")
    gate_up, down = (_as_loaded(one, version) for one in (gate_up, down))
    out = torch.zeros(tokens, hidden)
    for expert in range(count):
        token, place = (experts == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ gate_up[expert].T).chunk(2, -1)
        inner = (torch.nn.functional.silu(gate) * up).to(x.dtype).float()
        out.index_add_(0, token, weights[token, place, None] * (inner @ down[expert].T))
    return out.to(x.dtype)


def _as_loaded(weight: Tensor, version: str) -> Tensor:
    """In float32, in the order before `shuffle_weight`."""
    if version == HEAD and "is_shuffled" not in vars(weight):
        return weight.float()
    blocks = weight.float().view(-1, weight.shape[-2] // 16, weight.shape[-1] // 32, 4, 16, 8)
    return blocks.transpose(3, 4).transpose(2, 3).reshape(weight.shape)


OPERATORS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "rms_norm": _rms_norm,
    "rmsnorm2d_fwd_with_add": _with_add,
    "silu_and_mul": _silu_and_mul,
    "rope_cached_positions_2c_fwd_inplace": _rope,
    "topk_softmax": _topk_softmax,
    "shuffle_weight": _shuffle_weight,
    "fused_moe": _fused_moe,
}
