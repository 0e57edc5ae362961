"""Finds aiter and says in which version: the one file that imports it, and only where torch is for ROCm.

Anywhere else its import fails, and on ROCm it may start a compiler. What is called, by which arguments, is listed here;
`signatures.json` holds the arguments as the versions that it was written by define them.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit_plugin_attention_aiter import INSTEAD, PART

OLDEST = (0, 1, 7)
INSTALL = "pip install 'srtkit-plugin-attention-aiter[aiter]', or AMD's image, which brings aiter"
_WORK = "work_indptr reduce_indptr reduce_final_map reduce_partial_map"
FUNCTIONS = {
    "prefill": (
        "aiter.ops.mha.mha_batch_prefill_func",
        "q k v cu_seqlens_q kv_indptr kv_page_indices max_seqlen_q max_seqlen_k softmax_scale logits_soft_cap causal"
        " out",
    ),
    "decode": (
        "aiter.ops.attention.paged_attention_ragged",
        "out workspace_buffer query key_cache value_cache scale kv_indptr kv_page_indices kv_last_page_lens block_size"
        " max_num_partitions alibi_slopes kv_cache_dtype kv_cache_layout logits_soft_cap k_scale v_scale",
    ),
    "asm": (
        "aiter.ops.attention.pa_fwd_asm",
        "Q K V block_tables context_lens block_tables_stride0 out_",
    ),
    "unified": (
        "aiter.ops.triton.unified_attention.unified_attention",
        "q k v out cu_seqlens_q max_seqlen_q seqused_k max_seqlen_k softmax_scale causal window_size block_table"
        " softcap q_descale k_descale v_descale sinks",
    ),
    "extend": (
        "aiter.ops.triton.extend_attention.extend_attention_fwd",
        "q_extend k_extend v_extend o_extend k_buffer v_buffer qo_indptr kv_indptr kv_indices custom_mask is_causal"
        " mask_indptr max_len_extend sm_scale logit_cap skip_prefix_custom_mask",
    ),
    "varlen": (
        "aiter.ops.mha.flash_attn_varlen_func",
        "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k min_seqlen_q softmax_scale logits_soft_cap causal"
        " window_size return_lse",
    ),
    "mla": (
        "aiter.mla.mla_decode_fwd",
        "q kv_buffer o qo_indptr kv_indptr kv_indices kv_last_page_lens max_seqlen_q sm_scale num_kv_splits"
        f" work_meta_data work_info_set {_WORK}",
    ),
    "work_shapes": (
        "aiter.ops.attention.get_mla_metadata_info_v1",
        "batch_size max_seqlen_qo num_head_qo q_dtype kv_dtype is_sparse fast_mode",
    ),
    "plan_work": (
        "aiter.ops.attention.get_mla_metadata_v1",
        "seqlens_qo_indptr seqlens_kv_indptr num_heads_per_head_k num_heads_k is_causal work_metadata_ptrs"
        f" kv_granularity max_seqlen_qo uni_seqlen_qo fast_mode {_WORK}",
    ),
}
"""What is called: the function, and the arguments given in every version, always by name."""
ONLY_OLD = {"plan_work": "work_info"}
ONLY_NEWER = {
    "plan_work": "work_info_set kv_last_page_lens page_size dtype_q dtype_kv",
    "prefill": "kv_last_page_lens",
}
"""Arguments given to 0.1.7 alone, and to later versions alone."""
MOVED = {name: f"aiter.ops.triton.attention.{name}_attention" for name in ("unified", "extend")}
"""The modules of functions that later versions have elsewhere."""


@dataclass(frozen=True)
class Library:
    """aiter's functions by the names of `FUNCTIONS`. `newer`: a version after 0.1.7, which takes other arguments."""

    version: str
    newer: bool
    prefill: Callable[..., Any]
    decode: Callable[..., Any]
    asm: Callable[..., Any]
    unified: Callable[..., Any]
    extend: Callable[..., Any]
    varlen: Callable[..., Any]
    mla: Callable[..., Any]
    work_shapes: Callable[..., Any]
    plan_work: Callable[..., Any]


def find(part: str = PART) -> Library:
    """The installed aiter. `part` is who looks for it.

    Raises `DeviceAbsent` where torch is not for ROCm or aiter cannot be had, and `Unsupported` for a version before
    `OLDEST`, or one whose functions lack an argument.
    """
    if torch.version.hip is None:
        raise DeviceAbsent(part, f"torch {torch.__version__} is not built for ROCm", INSTEAD)
    try:
        found = version("amd-aiter")
    except PackageNotFoundError as error:
        raise DeviceAbsent(part, "amd-aiter is not installed", INSTALL) from error
    number = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if number < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise Unsupported(part, f"amd-aiter {found} is too old; {oldest} is the oldest that is known", INSTALL)
    newer = number > OLDEST
    functions, strange = {}, []
    for name in FUNCTIONS:
        module, function, arguments = called(name, newer=newer)
        try:
            functions[name] = vars(importlib.import_module(module))[function]
        except KeyError:
            strange.append(f"{module}.{function}")
            continue
        except Exception as error:  # of whatever it loads: a ROCm file, a compiler, its own modules
            if isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)):
                strange.append(f"{module}.{function}")  # this version has it elsewhere
                continue
            cause, remedy = f"amd-aiter {found} cannot be imported: {error}", "`srt doctor` looks at ROCm and hipcc"
            raise DeviceAbsent(part, cause, remedy) from error
        parameters = inspect.signature(functions[name]).parameters
        strange += [f"{function}({one})" for one in arguments if one not in parameters]
    if strange:
        cause = f"amd-aiter {found} takes other arguments than it did: {', '.join(strange)} not found"
        raise Unsupported(part, cause, "use a version that this plugin was written by; its README names them")
    return Library(found, newer, **functions)


def called(name: str, *, newer: bool) -> tuple[str, str, tuple[str, ...]]:
    """Module, function and arguments of a call in a version."""
    where, arguments = FUNCTIONS[name]
    module, _, function = where.rpartition(".")
    only = (ONLY_NEWER if newer else ONLY_OLD).get(name, "")
    return MOVED.get(name, module) if newer else module, function, (*arguments.split(), *only.split())


def architecture(device: torch.device) -> str:
    """A GPU's as LLVM names it, without its features: "gfx942"."""
    return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]


assert {one.name for one in fields(Library)} == {"version", "newer", *FUNCTIONS}
