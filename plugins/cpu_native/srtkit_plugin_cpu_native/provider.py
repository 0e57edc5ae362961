"""The operators: one C call each. Knows the ops contract and library.py.

A call costs about 2 µs of Python; so arguments that do not change are bound when the operator is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.ops import Op, OpFacts, OpsProvider, WeightOp
from srtkit_plugin_cpu_native import library
from srtkit_plugin_cpu_native.ops import PART

COLUMNS = 16
"""Outputs of a panel of the packed weight."""
BLOCK = COLUMNS * 32
"""Weights of a block, 16 outputs times 32 inputs, which has steps of its own."""
STEPS_BYTES = 384
"""`sizeof(Steps)` of src/steps.h: a block in 4 bits a weight."""


class NativeOps(OpsProvider):
    """Binds the kernels to a dtype and to the number of threads the platform set."""

    def __init__(self) -> None:
        self._kernels = library.load()
        self._threads = torch.get_num_threads()

    def bind(self, facts: OpFacts) -> Op | WeightOp:
        """The operator of that name. Raises `DeviceAbsent` where the processor has not what its facts say."""
        kernels = self._kernels
        if kernels is None or (facts.op == "linear" and kernels.linear is None):
            raise DeviceAbsent(PART, f"has no {facts.op} for this processor", "leave cpu-native out of [ops] use")
        if facts.op == "linear":
            return PackedLinear(kernels, self._threads)
        return _MAKERS[facts.op](kernels, library.DTYPES[facts.dtype], self._threads)


def _norm(kernels: library.Kernels, dtype: int, threads: int) -> Callable[..., Tensor]:
    call = kernels.rms_norm

    def norm(x: Tensor, residual: int | None, weight: Tensor, eps: float) -> Tensor:
        """x [T, H] → [T, H], rounded once; `residual` is the address of what x is added to first, or None."""
        x = x if x.stride(1) == 1 else x.contiguous()
        rows, size = x.shape
        out = torch.empty(rows, size, dtype=x.dtype)
        call(dtype, x.data_ptr(), x.stride(0), residual, weight.data_ptr(), out.data_ptr(), rows, size, eps, threads)
        return out

    return norm


def _rms_norm(kernels: library.Kernels, dtype: int, threads: int) -> Op:
    norm = _norm(kernels, dtype, threads)
    return lambda x, weight, eps: norm(x, None, weight, eps)


def _add_rms_norm(kernels: library.Kernels, dtype: int, threads: int) -> Op:
    norm = _norm(kernels, dtype, threads)

    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`residual` [T, H] += x, then the norm of it."""
        assert residual.is_contiguous(), "a residual is dense"
        return norm(x, residual.data_ptr(), weight, eps)

    return add_rms_norm


def _silu_mul(kernels: library.Kernels, dtype: int, threads: int) -> Op:
    call = kernels.silu_mul

    def silu_mul(gate_up: Tensor) -> Tensor:
        """[T, 2 I] → [T, I], rounded once."""
        gate_up = gate_up.contiguous()
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size, dtype=gate_up.dtype)
        call(dtype, gate_up.data_ptr(), out.data_ptr(), rows, size, threads)
        return out

    return silu_mul


def _rope(kernels: library.Kernels, dtype: int, threads: int) -> Op:
    call = kernels.rope

    def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Rotates in place; q and k at once where they stand side by side, as slices of a fused qkv do."""
        rows, q_heads, size = q.shape
        rotary = cos.shape[-1]
        tables = cos.data_ptr(), sin.data_ptr()
        width = q.stride(0)
        if k.stride(0) == width and k.data_ptr() == q.data_ptr() + q_heads * size * q.element_size():
            call(dtype, q.data_ptr(), width, *tables, rows, q_heads + k.shape[1], size, rotary, threads)
            return
        call(dtype, q.data_ptr(), width, *tables, rows, q_heads, size, rotary, threads)
        call(dtype, k.data_ptr(), k.stride(0), *tables, rows, k.shape[1], size, rotary, threads)

    return rope


def _norm_rope(kernels: library.Kernels, dtype: int, threads: int) -> Op:
    norm, rope = _norm(kernels, dtype, threads), _rope(kernels, dtype, threads)

    def norm_rope(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
    ) -> None:
        """The norm of each head of q and k, then its rotation, in place."""
        for x, weight in ((q, q_weight), (k, k_weight)):
            x.copy_(norm(x.reshape(-1, x.shape[2]), None, weight, eps).view(x.shape))
        rope(q, k, cos, sin)

    return norm_rope


_MAKERS: dict[str, Callable[[library.Kernels, int, int], Op]] = {
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "silu_mul": _silu_mul,
    "rope": _rope,
    "norm_rope": _norm_rope,
}


class PackedLinear(WeightOp):
    """A linear in bfloat16. Its weight stands as [out / 16, in / 2, 16, 2], the last panel filled with zeros.

    Beside it, for few rows, in 4 bits where these say the same bit for bit: where every block of 32 inputs
    takes at most 16 evenly spaced values, as in a model that was quantised.
    """

    def __init__(self, kernels: library.Kernels, threads: int) -> None:
        self._kernels = kernels
        self._call = kernels.linear
        self._threads = threads
        self._packed = torch.empty(0)
        self._steps: Tensor | None = None
        self._bias: Tensor | None = None
        self._arguments: tuple[int, int | None, int | None] = (0, None, None)
        self._sizes = (0, 0)

    def pack(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight [out, in], in a multiple of 32."""
        out_size, in_size = self._sizes = (weight.shape[0], weight.shape[1])
        padded = F.pad(weight, (0, 0, 0, -out_size % COLUMNS))
        self._packed = padded.reshape(-1, COLUMNS, in_size // 2, 2).transpose(1, 2).contiguous()
        self._steps = self._in_steps()
        self._bias = bias
        steps, bias_at = (None if one is None else one.data_ptr() for one in (self._steps, bias))
        self._arguments = (self._packed.data_ptr(), steps, bias_at)

    def _in_steps(self) -> Tensor | None:
        """The packed weight in 4 bits, or None where that would change one."""
        blocks, kept = self._packed.numel() // BLOCK, ctypes.c_int32()
        steps = torch.empty(blocks, STEPS_BYTES, dtype=torch.uint8)
        at = self._packed.data_ptr(), blocks, steps.data_ptr(), ctypes.addressof(kept)
        self._kernels.keep_steps(*at, self._threads)
        return steps if kept.value else None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] → [T, out]."""
        x = x if x.stride(1) == 1 else x.contiguous()
        out_size, in_size = self._sizes
        rows = x.shape[0]
        out = torch.empty(rows, out_size, dtype=torch.bfloat16)
        self._call(x.data_ptr(), x.stride(0), *self._arguments, out.data_ptr(), rows, in_size, out_size, self._threads)
        return out

    @property
    def keeps_weight(self) -> bool:
        """No: the packed form replaces it."""
        return False
