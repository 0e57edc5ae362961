"""aiter's own Triton kernels, from the wheel's source, in Triton's interpreter with the plugin's own metadata."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import srtkit_plugin_attention_aiter as plugin
from plugins.attention_aiter.tests import triton_kernels
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_cli_debug.calls import FILE, load
from tools import aiter_wheel

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),  # numpy, of scores that are minus infinity
    pytest.mark.filterwarnings("ignore:tl.where with a non-boolean:UserWarning"),  # aiter's kernel, of its mask
]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """The suite's, over the plugin with these kernels. In float16: the interpreter is wrong in bfloat16."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if torch.cuda.is_available():
        pytest.skip("these tensors are on the CPU: bench/gpu/aiter_triton.py runs the kernels on a card")
    try:
        wheel = aiter_wheel.fetch()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"amd-aiter {aiter_wheel.VERSION} cannot be had from a package index here: {error}")
    with aiter_wheel.triton_modules(wheel) as modules:
        folder = tmp_path_factory.mktemp("aiter")
        yield triton_kernels.harness(modules, folder, "gfx942", frozenset({"float16"}))


QUICK = ("decode, window", "tree of drafts")
"""A step of each kernel. The others are for `full`."""


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in QUICK else pytest.mark.full) for step in triton_kernels.STEPS]
)
def test_they_compute_the_plugins_steps(harness: Harness, step: str) -> None:
    assert triton_kernels.run(harness, triton_kernels.STEPS[step], "float16")


WRONG: dict[str, tuple[str, str, str, Callable[[Any], Any]]] = {
    "a window of one more": ("decode, window", "unified", "window_size", lambda window: (window[0] + 1, window[1])),
    "one key less": ("chain of drafts", "unified", "seqused_k", lambda lengths: lengths - 1),
    "the next page": ("chain of drafts", "unified", "block_table", lambda table: table.roll(-1, 1)),
    "drafts see all others": ("tree of drafts", "extend", "custom_mask", lambda mask: mask.fill_(1)),
    "a page is its first token": ("tree of drafts", "extend", "kv_indices", lambda slots: slots // 16 * 16),
}


@pytest.mark.full
@pytest.mark.parametrize("wrong", WRONG)
def test_other_metadata_is_found(harness: Harness, wrong: str) -> None:
    step, *change = WRONG[wrong]
    with pytest.raises(Failed):
        triton_kernels.run(triton_kernels.changed(harness, *change), triton_kernels.STEPS[step], "float16")


@pytest.mark.full
def test_the_double_and_they_agree_on_the_recorded_calls(harness: Harness) -> None:
    """The file is the double's: `python -m plugins.attention_aiter.tests.record`."""
    library: Library = harness.target.extra["library"]
    kernels = {"unified_attention": library.unified, "extend_attention_fwd": library.extend}
    played = []
    for call in load(Path(plugin.__file__).with_name(FILE)):
        name = call.function.partition(":")[2]
        if name in kernels:
            played.append(name)
            assert max(call.play(kernels[name], torch.device("cpu")).values()) < 2e-3
    assert set(played) == set(kernels)
