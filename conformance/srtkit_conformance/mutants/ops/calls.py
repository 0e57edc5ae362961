"""Operators whose calls disturb one another, or what they were given."""

from __future__ import annotations

from torch import Tensor

from srtkit.spec.ops import Op
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.ops.wrap import WrappedLinear, with_linear, with_op

ROWS = 128
"""Rows of a block, or of a buffer."""


def _in_place(inner: Op) -> Op:
    def silu_mul(gate_up: Tensor) -> Tensor:
        out: Tensor = inner(gate_up)
        gate_up[:, : out.shape[1]] = out
        return out

    return silu_mul


scratch = mutant(
    "ops.scratch",
    of="cpu",
    sentence="silu_mul leaves its result in gate_up, too.",
    killed_by=("ops.untouched",),
)(with_op("silu_mul", _in_place))


def _one_buffer(inner: Op) -> Op:
    buffers: dict[int, Tensor] = {}

    def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out: Tensor = inner(x, weight, eps)
        buffer = buffers.setdefault(out.shape[1], out.new_empty(max(ROWS * 2, len(out)), out.shape[1]))
        return buffer[: len(out)].copy_(out)

    return rms_norm


one_buffer = mutant(
    "ops.one_buffer",
    of="cpu",
    sentence="Every norm is written to the same memory.",
    killed_by=("ops.results_stay",),
)(with_op("rms_norm", _one_buffer))


def _clean(inner: Op) -> Op:
    def silu_mul(gate_up: Tensor) -> Tensor:
        out: Tensor = inner(gate_up)
        return out.nan_to_num(nan=0.0)

    return silu_mul


hides_nan = mutant(
    "ops.hides_nan",
    of="cpu",
    sentence="silu_mul makes zero of NaN.",
    killed_by=("ops.nan",),
)(with_op("silu_mul", _clean))


class TwoBlocks(WrappedLinear):
    """The second block of rows starts one row early."""

    def __call__(self, x: Tensor) -> Tensor:
        out = super().__call__(x)
        if len(x) > ROWS:
            out[ROWS:] = out[ROWS - 1 : -1].clone()
        return out


two_blocks = mutant(
    "ops.two_blocks",
    of="cpu",
    sentence="Rows behind the 128th are those of the row before.",
    killed_by=("ops.rows",),
)(with_linear(TwoBlocks))


class WantsRows(WrappedLinear):
    def __call__(self, x: Tensor) -> Tensor:
        x.abs().max()
        return super().__call__(x)


wants_rows = mutant(
    "ops.wants_rows",
    of="cpu",
    sentence="Looks for the largest input, also of none.",
    killed_by=("ops.no_rows",),
)(with_linear(WantsRows))
