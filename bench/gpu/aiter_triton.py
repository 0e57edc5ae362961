"""aiter's own Triton kernels, compiled for an NVIDIA card, on the plugin's metadata: right or wrong, not how fast.

    python -m bench.gpu.aiter_triton [--out FILE]

Launch options that only Triton's AMD backend knows are dropped. Results are held against float64 by the gates of the
conformance suite, as those of `attention:torch` are. Ends with 1 if a step is wrong or does not run. Needs .cache/aiter
(`python -m tools.aiter_wheel` fetches it), of which the folder aiter/ops/triton is enough.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugins.attention_aiter.tests.triton_kernels import FP8, LONGER, STEPS, harness, run
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_plugin_ops_aiter.library import FUNCTIONS, Library
from srtkit_plugin_ops_aiter.provider import AiterOps
from tools import aiter_wheel

DTYPES = ("bfloat16", "float16")
EPS = 1e-5
LIMITS = {torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Of an operator's values of size one, a few roundings."""


def attention(modules: Any, folder: Path) -> Iterator[tuple[str, Callable[[], float]]]:
    """Each step by name, and what runs it: the worst share of a gate's limit."""
    for architecture, steps in (("gfx942", {**STEPS, **LONGER}), ("gfx950", FP8)):
        card = harness(modules, folder, architecture, frozenset(DTYPES), "cuda")
        for name, step in steps.items():
            for dtype in DTYPES[1:] if "mla" in step else DTYPES:  # latents in bfloat16 are mla_decode_fwd's: assembler
                yield f"{name}, {dtype}", partial(_worst, card, step, dtype)


def operators(modules: Any) -> Iterator[tuple[str, Callable[[], float]]]:
    """Norms and rotation over a model's sizes: the largest error as a share of its limit."""
    norms, rotate = modules.load("rmsnorm"), modules.load("rope").rope_cached_positions_fwd_inplace

    def rope(input_x: Tensor, input_y: Tensor, **given: Any) -> None:
        rotate(input_x, **given)
        rotate(input_y, **given)

    found = dict.fromkeys(FUNCTIONS) | {
        "rms_norm": norms.rms_norm,
        "rmsnorm2d_fwd_with_add": norms.rmsnorm2d_fwd_with_add,
        "rope_cached_positions_2c_fwd_inplace": rope,
    }
    library = Library("Triton", **found)  # type: ignore[arg-type]
    ops = AiterOps(library, torch.device("cuda"), 512)
    for dtype in DTYPES:
        for name, check in (("rms_norm", _norm), ("add_rms_norm", _add_norm), ("rope", _rope)):
            yield f"{name}, {dtype}", partial(check, ops, dtype)


def _worst(card: Harness, step: dict[str, Any], dtype: str) -> float:
    return max(run(card, step, dtype).values())


def _norm(ops: AiterOps, dtype: str) -> float:
    x, weight = _normal(dtype, 300, 4096), _normal(dtype, 4096)
    return _share(ops.rms_norm(x, weight, EPS), _normed(x.double(), weight))


def _add_norm(ops: AiterOps, dtype: str) -> float:
    x, residual, weight = _normal(dtype, 300, 4096), _normal(dtype, 300, 4096), _normal(dtype, 4096)
    total = x.double() + residual.double()
    share = _share(ops.add_rms_norm(x, residual, weight, EPS), _normed(total, weight))
    return max(share, _share(residual, total))


def _rope(ops: AiterOps, dtype: str) -> float:
    fused = _normal(dtype, 300, 32 + 2 * 8, 128)
    angles = torch.rand(300, 1, 64, device="cuda", dtype=torch.float64) * 6
    cos, sin = angles.cos().to(fused.dtype), angles.sin().to(fused.dtype)
    points = torch.complex(fused.double()[:, :40, :64], fused.double()[:, :40, 64:])
    points = points * torch.complex(cos.double(), sin.double())
    ops.rope(fused[:, :32], fused[:, 32:40], torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    return _share(fused[:, :40], torch.cat((points.real, points.imag), -1))


def _normal(dtype: str, *shape: int) -> Tensor:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def _share(found: Tensor, exact: Tensor) -> float:
    """The largest error as a share of its limit."""
    return float(((found.double() - exact).abs() / exact.abs().clamp(min=1.0)).max()) / LIMITS[found.dtype]


def measured(what: Callable[[], float]) -> tuple[bool, float | str]:
    """Whether it is right, and how much of the limit was used, or what went wrong."""
    try:
        share = what()
    except Failed as failure:
        return False, failure.message
    except Exception as error:  # a kernel that does not compile must not hide the others
        return False, f"{type(error).__name__}: {error}"[:400]
    return share <= 1, round(share, 3)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    results: dict[str, float | str] = {}
    wrong = 0
    with tempfile.TemporaryDirectory() as name, aiter_wheel.triton_modules(aiter_wheel.fetch()) as modules:
        for what, call in (*attention(modules, Path(name)), *operators(modules)):
            right, results[what] = measured(call)
            wrong += not right
            print(f"{'ok   ' if right else 'WRONG'} {what}: {results[what]}", flush=True)
    device = torch.cuda.get_device_name()
    told = {"aiter": aiter_wheel.VERSION, "device": device, "torch": torch.__version__, "triton": version("triton")}
    print(f"{len(results) - wrong} of {len(results)} right on {told}")
    if given.out:
        given.out.write_text(json.dumps({**told, "share of the limit": results}, indent=2), "utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
