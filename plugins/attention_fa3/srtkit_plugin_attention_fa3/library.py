"""Finds the operator, loads it, and binds its arguments by name: the one file that knows its providers.

Providers agree on the arguments' names and not on their number and order, so a call is laid out by the schema that
the operator was registered with. Their Python packages are not imported.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from srtkit.spec.errors import ConfigError, DeviceAbsent, Unsupported
from srtkit_plugin_attention_fa3 import PART

_log = logging.getLogger("srtkit.attention.fa3")
INSTALL = (
    "pip install vllm, or sglang-kernel, of a version that is built for this torch; or set library "
    "in [attention.options.fa3] to the path of a _vllm_fa3_C.abi3.so"
)
UNUSED: Mapping[str, object] = {
    **dict.fromkeys(("k_new", "v_new", "cu_seqlens_k_new", "seqused_q", "kv_batch_idx", "leftpad_k")),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "seqlens_rotary", "q_descale", "k_descale", "v_descale")),
    **dict.fromkeys(("pack_gqa", "s_aux", "sinks", "cp_tot_seqused_k")),
    "attention_chunk": 0,
    "is_rotary_interleaved": True,
    "sm_margin": 0,
    "cp_world_size": 1,
    "cp_rank": 0,
    "max_seqlen_k_new": 0,
}
"""Arguments of either operator that this plugin has no use for, with the value that says so."""
MASK = ("is_causal", "window_size_left", "window_size_right", "num_splits")
LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_k", "max_seqlen_q", "max_seqlen_k")
FORWARD = ("q", "k", "v", "q_v", "out", "page_table", "softmax_scale", "softcap", "scheduler_metadata", *LENGTHS, *MASK)
SCHEDULE = (
    *("batch_size", "num_heads", "num_heads_k", "headdim", "headdim_v", "qkv_dtype", "page_size", "has_softcap"),
    *LENGTHS,
    *MASK,
)


class Call:
    """A registered operator that takes its arguments by name, whatever their order."""

    def __init__(self, overload: Any, given: tuple[str, ...]) -> None:
        """`given` are the arguments that every call names. Raises `Unsupported` if the schema has others."""
        schema = overload._schema
        known = {*given, *UNUSED}
        arguments = list(schema.arguments)
        while arguments and arguments[-1].name not in known and arguments[-1].has_default_value():
            arguments.pop()  # newer than this plugin, and off unless it is given
        self._overload = overload
        self._names = [argument.name for argument in arguments]
        strange = [name for name in self._names if name not in known]
        strange += [name for name in given if name not in self._names]
        if strange:
            cause = f"{schema.name} takes other arguments than it did: {', '.join(strange)}"
            raise Unsupported(PART, cause, "use a version that this plugin was tested with; its README names them")

    def __call__(self, **given: object) -> Any:
        """Call it. What is not given is off."""
        values = {**UNUSED, **given}
        return self._overload(*[values[name] for name in self._names])


@dataclass(frozen=True)
class Operator:
    """FlashAttention-3 as one provider registered it. `schedule` is None where it cannot plan ahead."""

    provider: str
    forward: Call
    schedule: Call | None


@dataclass(frozen=True)
class Provider:
    """A package, where in it the library lies, and where that registers its operators."""

    package: str
    pattern: str
    namespace: Callable[[], Any]


PROVIDERS = (
    Provider("vllm", "vllm_flash_attn/_vllm_fa3_C*.so", lambda: torch.ops._vllm_fa3_C),
    Provider("sgl_kernel", "flash_ops*.so", lambda: torch.ops.sgl_kernel),
)


def find(library: str) -> Operator:
    """The operator of this library; if that is empty, the one that is loaded already, or an installed one.

    Raises `ConfigError` for a path without a file, `DeviceAbsent` if there is no operator or it does not load,
    `Unsupported` if it takes unknown arguments.
    """
    before = _registered()
    if library:
        _load(_file(library))
    elif not before:
        _load(_installed())
    found = _registered()
    if library:  # loaded now, or before, under the name that this provider's has
        new = [one for one in found if one not in before]
        found = new or [one for one in found if fnmatch(Path(library).name, Path(one.pattern).name)]
    if not found:
        raise DeviceAbsent(PART, f"{library or 'the library'} registers no operator of FlashAttention-3", INSTALL)
    provider = found[0]
    _log.info("FlashAttention-3 is that of %s", provider.package)
    schedule = _overload(provider, "get_scheduler_metadata")
    forward = Call(provider.namespace().fwd.default, FORWARD)
    return Operator(provider.package, forward, None if schedule is None else Call(schedule, SCHEDULE))


def _registered() -> list[Provider]:
    return [provider for provider in PROVIDERS if _overload(provider, "fwd") is not None]


def _overload(provider: Provider, name: str) -> Any:
    """The operator, or None if it is not registered."""
    try:
        space = provider.namespace()
        return (space.fwd if name == "fwd" else space.get_scheduler_metadata).default
    except AttributeError:
        return None


def _file(library: str) -> Path:
    path = Path(library).expanduser()
    if not path.is_file():
        raise ConfigError(PART, f"library names no file: {path}", INSTALL)
    return path


def _installed() -> Path:
    """The library of the first provider that is installed."""
    seen = []
    for provider in PROVIDERS:
        spec = importlib.util.find_spec(provider.package)
        for folder in spec.submodule_search_locations or () if spec else ():
            for path in sorted(Path(folder).glob(provider.pattern)):
                return path
            seen.append(f"{folder}/{provider.pattern}")
    looked = f"nothing matches {', '.join(seen)}" if seen else "neither sgl_kernel nor vllm is installed"
    raise DeviceAbsent(PART, f"there is no operator: {looked}", INSTALL)


def _load(path: Path) -> None:
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        built = f"torch here is {torch.__version__}, for CUDA {torch.version.cuda}"
        raise DeviceAbsent(PART, f"{path} does not load: {error.__cause__ or error} ({built})", INSTALL) from error
