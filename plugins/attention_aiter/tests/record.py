"""Writes calls that the plugin makes of aiter, with what the double makes of them, into the plugin's package.

    python -m plugins.attention_aiter.tests.record

Left out: MLA's decode kernel, whose plan of work only aiter itself can make.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported

import srtkit_plugin_attention_aiter as plugin
from plugins.attention_aiter.tests.double import Double
from srtkit.spec.attention import AttentionBackend, AttentionBuild
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import verify
from srtkit_plugin_attention_aiter.library import called
from srtkit_plugin_attention_aiter.mha import MhaAttention
from srtkit_plugin_cli_debug.calls import FILE, Call, recording, save

FUNCTIONS = ("decode", "prefill", "unified", "extend")
SHAPE: dict[str, Any] = {"kv_heads": 1, "ratio": 8, "head_dim": 64, "garbage": 1.0}
STEPS: tuple[dict[str, Any], ...] = (
    {"rows": rows_of((37, 1), (15, 1)), "leading": 2},
    {"rows": rows_of((20, 5), (0, 17))},
    {"rows": rows_of((37, 1), (15, 1)), "leading": 2, "window": 24},
    {"rows": rows_of((20, 4), (17, 4)), "leading": 2},
    {"rows": rows_of((20, 4), (17, 4)), "leading": 2, "tree": True},
)
"""Decode, prompts, decode with a window, drafts in a chain and in a tree: by each kernel that there is for them."""


def calls() -> list[Call]:
    """Those of a step each, in float16: so the wheel's Triton kernels can play them in the interpreter, too."""
    log: list[Call] = []
    names = {name: "{}:{}".format(*called(name, newer=False)[:2]) for name in FUNCTIONS}
    library = recording(Double("gfx942", newer=False).library(), names, log, scratch=("workspace_buffer",))

    def build(given: AttentionBuild) -> AttentionBackend:
        return MhaAttention(given, library)

    with tempfile.TemporaryDirectory() as folder:
        target = load_target(Subject("attention", "aiter"), suite_for("attention"), Path(folder))
        facts = DeviceFacts("rocm", "assumed gfx942", "gfx942", dtypes=frozenset({"float16"}))
        target = replace(target, facts=facts, descriptor=replace(target.descriptor, build=build))
        harness = Harness(target)
        for step in STEPS:
            verify(harness, [replace(harness.case(step["rows"]), **SHAPE, **step)])
    return log


if __name__ == "__main__":
    torch.manual_seed(0)
    save(calls(), Path(plugin.__file__).with_name(FILE))
