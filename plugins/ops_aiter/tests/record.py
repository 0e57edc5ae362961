"""Writes the calls that the plugin makes of aiter, with what the double makes of them, into the plugin's package.

python -m plugins.ops_aiter.tests.record
"""

from __future__ import annotations

from pathlib import Path

import torch

import srtkit_plugin_ops_aiter as plugin
from plugins.ops_aiter.tests import double
from srtkit_plugin_cli_debug.calls import FILE, Call, recording, save
from srtkit_plugin_ops_aiter.library import FUNCTIONS, Library
from srtkit_plugin_ops_aiter.provider import AiterOps


def calls() -> list[Call]:
    """One call of each function in each dtype, but for those of experts' weights.

    A file does not keep the mark of what is shuffled, by which later versions choose.
    """
    log: list[Call] = []
    modules = double.modules(double.OLD)
    functions = {name: vars(modules[module])[name] for name, module in FUNCTIONS.items()}
    names = {name: f"{module}:{name}" for name, module in FUNCTIONS.items()}
    ops = AiterOps(
        recording(Library("double", **functions), names, log, {"token_expert_indices"}), torch.device("cpu"), 8
    )
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.bfloat16):
        x, residual = torch.randn(2, 5, 256).to(dtype)
        weight, fused, angles = torch.randn(256).to(dtype), torch.randn(5, 6, 64).to(dtype), torch.rand(5, 1, 32) * 6
        cos, sin = angles.cos(), angles.sin()
        ops.rms_norm(x, weight, 1e-5)
        ops.add_rms_norm(x, residual, weight, 1e-5)
        ops.silu_mul(x)
        ops.route(x[:, :128], 8, True)
        ops.rope(fused[:, :4], fused[:, 4:], torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
    return log


if __name__ == "__main__":
    save(calls(), Path(plugin.__file__).with_name(FILE))
