"""aiter's own Triton kernels behind the plugin: the steps that they take, and the suite's harness over them.

On a CPU they run in Triton's interpreter, on an NVIDIA card as it compiles them (`bench/gpu/aiter_triton.py`). Steps
that the plugin gives to CK, HIP or assembler kernels are refused here: there is nothing to run them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from srtkit.spec.attention import AttentionBackend, AttentionBuild
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.kits.attention.case import rows_of
from srtkit_conformance.kits.attention.harness import MLA_DIMS, Harness
from srtkit_conformance.kits.attention.step import verify
from srtkit_conformance.target import Target
from srtkit_plugin_attention_aiter.library import FUNCTIONS, Library
from srtkit_plugin_attention_aiter.mha import MhaAttention
from srtkit_plugin_attention_aiter.mla import MlaAttention
from tools.aiter_wheel import VERSION

DECODE = rows_of((99, 1), (15, 1), (0, 1))
PROMPTS = rows_of((40, 1), (33, 17), (0, 20))
DRAFTS = rows_of((70, 4), (17, 4))
LATENT = {"mla": MLA_DIMS[0], "ratio": 4}
STEPS: dict[str, dict[str, Any]] = {
    "decode, window": {"rows": DECODE, "leading": 3, "window": 24},
    "decode, window of one": {"rows": DECODE, "leading": 3, "window": 1},
    "decode, sinks and soft cap": {"rows": DECODE, "leading": 3, "sinks": True, "soft_cap": 5.0},
    "decode, long row": {"rows": rows_of((600, 1), (3, 1)), "leading": 2, "head_dim": 32},
    "decode, pages of one token": {"rows": DECODE, "leading": 3, "page": 1, "head_dim": 32},
    "prompts, window": {"rows": PROMPTS, "window": 24},
    "prompts, large heads": {"rows": PROMPTS, "head_dim": 256, "ratio": 1},
    "mixed, sinks": {"rows": PROMPTS, "leading": 1, "sinks": True},
    "chain of drafts": {"rows": DRAFTS, "leading": 2},
    "tree of drafts": {"rows": DRAFTS, "leading": 2, "tree": True},
    "tree of drafts, window": {"rows": DRAFTS, "leading": 2, "tree": True, "window": 24},
    "decode, latent": {"rows": rows_of((40, 1), (3, 1)), "leading": 2, **LATENT},
    "prompts, latent": {"rows": rows_of((20, 5), (0, 9)), **LATENT},
    "tree of drafts, latent": {"rows": rows_of((20, 4), (3, 4)), "leading": 2, "tree": True, **LATENT},
}
"""By what they are: small, for the interpreter."""
LONGER: dict[str, dict[str, Any]] = {
    "decode, 4,000 tokens, sinks": {"rows": rows_of((4000, 1), (1111, 1), (17, 1)), "leading": 3, "sinks": True},
    "decode, 4,000 tokens, window": {"rows": rows_of((4000, 1), (1111, 1)), "leading": 2, "window": 1000},
    "prompts, 1,000 tokens": {"rows": rows_of((1500, 1000), (0, 700), (30, 1)), "head_dim": 256, "ratio": 4},
    "decode, pages of 64": {"rows": rows_of((900, 1), (64, 1)), "leading": 2, "page": 64, "window": 300},
    "tree of 32 drafts": {"rows": rows_of((700, 32), (129, 32)), "leading": 2, "tree": True, "head_dim": 128},
}
"""For a GPU."""
FP8: dict[str, dict[str, Any]] = {
    "decode, window, FP8": {"rows": DECODE, "leading": 3, "window": 24, "kv_dtype": "float8_e4m3fn"},
    "prompts, FP8": {"rows": PROMPTS, "kv_dtype": "float8_e4m3fn"},
    "tree of drafts, FP8": {"rows": DRAFTS, "leading": 2, "tree": True, "kv_dtype": "float8_e4m3fn"},
}
"""For a GPU, as if on gfx950: the interpreter rounds to FP8 wrongly, and NVIDIA has no e4m3fnuz."""


def harness(
    modules: SimpleNamespace, folder: Path, architecture: str, dtypes: frozenset[str], device: str = "cpu"
) -> Harness:
    """The suite's harness over the plugin with the kernels of `modules` (tools.aiter_wheel), on a device that is here.

    The plugin is told that its device is an AMD GPU of this architecture.
    """
    library = Library(VERSION, newer=False, **{name: _absent(name) for name in FUNCTIONS})
    unified, extend = modules.load("unified_attention"), modules.load("extend_attention")
    library = replace(library, unified=unified.unified_attention, extend=extend.extend_attention_fwd)
    facts = DeviceFacts("rocm", f"assumed {architecture}", architecture, dtypes=dtypes)
    target = load_target(Subject("attention", "aiter", device), suite_for("attention"), folder)
    return _over(library, replace(target, facts=facts, extra={"library": library}))


def changed(right: Harness, function: str, argument: str, change: Callable[[Any], Any]) -> Harness:
    """The harness as if the plugin gave another argument to one of the functions."""
    library: Library = right.target.extra["library"]
    called = vars(library)[function]

    def call(**given: Any) -> Any:
        return called(**given | {argument: change(given[argument])})

    return _over(replace(library, **{function: call}), right.target)


def _over(library: Library, target: Target) -> Harness:
    def build(given: AttentionBuild) -> AttentionBackend:
        kind = MhaAttention if given.group.spec.mla is None else MlaAttention
        return kind(given, library)

    return Harness(replace(target, descriptor=replace(target.descriptor, build=build)))


def _absent(name: str) -> Callable[..., Any]:
    def call(**given: Any) -> Any:
        raise AssertionError(f"aiter's {name} is no Triton kernel")

    return call


def run(harness: Harness, step: dict[str, Any], dtype: str) -> Mapping[str, float]:
    """One step against the suite's float64: the share of each limit that was used. Raises `Failed`."""
    case = replace(harness.case(step["rows"], dtype=dtype), **step)
    return verify(harness, [case]).worst
