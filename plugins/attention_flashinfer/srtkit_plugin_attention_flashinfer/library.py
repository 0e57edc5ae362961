"""Finds FlashInfer and says in which version: the one file that imports it, and only when a backend is built.

What the wrappers are called with is listed here, so a version that renamed an argument is refused when it is found.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_attention_flashinfer import PART

OLDEST = (0, 7, 4)
"""The version whose signatures and sources this plugin was written by."""
INSTALL = "pip install 'flashinfer-python>=0.7.4'"
KERNELS = (
    "install nvcc of torch's CUDA version and ninja, so that FlashInfer can compile them; without a compiler put built "
    "modules where it looks for them: the README of srtkit-plugin-attention-flashinfer names both"
)
SHAPE = ("num_qo_heads", "num_kv_heads", "page_size")
MATH = ("window_left", "logits_soft_cap", "sm_scale", "q_data_type", "kv_data_type", "seq_lens", "disable_split_kv")
RUN = ("q", "paged_kv_cache", "out", "lse", "return_lse")
NEW = ("float_workspace_buffer", "kv_layout", "use_cuda_graph", "backend")
RESET = ("float_workspace_buffer", "int_workspace_buffer")
DECODE = {
    "__init__": (
        *NEW,
        *("use_tensor_cores", "paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer"),
    ),
    "reset_workspace_buffer": RESET,
    "plan": ("indptr", "indices", "last_page_len", "head_dim", *SHAPE, *MATH),
    "run": RUN,
}
PREFILL = {
    "__init__": (
        *NEW,
        *("qo_indptr_buf", "paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf"),
        *("custom_mask_buf", "mask_indptr_buf"),
    ),
    "reset_workspace_buffer": RESET,
    "plan": (
        *("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len", "head_dim_qk"),
        *("causal", "uniform_q_len", "packed_custom_mask", *SHAPE, *MATH),
    ),
    "run": RUN,
}
"""Arguments given by name, for each method of a wrapper."""


@dataclass(frozen=True)
class Library:
    """FlashInfer's wrappers of paged attention, of decode rows and of any rows."""

    version: str
    decode: Callable[..., Any]
    prefill: Callable[..., Any]


def find() -> Library:
    """FlashInfer as it is installed.

    Raises `DeviceAbsent` if it is missing, does not import or is too old, `Unsupported` if it takes other arguments.
    """
    try:
        module: Any = importlib.import_module("flashinfer")
    except (ImportError, OSError) as error:  # a library of CUDA's that is missing is an OSError
        raise DeviceAbsent(PART, f"the package flashinfer cannot be imported: {error}", INSTALL) from error
    version = str(module.__version__)
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise DeviceAbsent(PART, f"flashinfer {version} is too old; {oldest} is the first that it knows", INSTALL)
    decode, prefill = module.BatchDecodeWithPagedKVCacheWrapper, module.BatchPrefillWithPagedKVCacheWrapper
    strange = [*_missing(decode, DECODE), *_missing(prefill, PREFILL)]
    if strange:
        cause = f"flashinfer {version} takes other arguments than it did: {', '.join(strange)} not found"
        raise Unsupported(PART, cause, "use a version that this plugin was tested with; its README names them")
    return Library(version, decode, prefill)


def _missing(wrapper: Any, given: dict[str, tuple[str, ...]]) -> list[str]:
    """Arguments that a wrapper's methods do not name; where a method takes any, nobody can tell."""
    strange = []
    for method, names in given.items():
        parameters = inspect.signature(vars(wrapper)[method]).parameters
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
            strange += [f"{wrapper.__name__}.{method}({name})" for name in names if name not in parameters]
    return strange
