"""Building a backend, and one row of each kind of step: aiter compiles its kernels then, for minutes, once a machine.

A step that meets one that is not compiled waits for it, and one that is being recorded cannot. Trees are left out:
their kernels are Triton's, compiled in a second.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from srtkit.spec.attention import AttentionBackend, AttentionBuild, Batch, GroupView, LayerHandle
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES
from srtkit_plugin_attention_aiter import INSTEAD, library
from srtkit_plugin_attention_aiter.backend import AiterAttention
from srtkit_plugin_attention_aiter.library import Library
from srtkit_plugin_attention_aiter.table import FP8

KINDS = ((1, 1), (1, 2), (0, 3))
"""Leading rows, and queries: decode, verified drafts, a prompt."""


def built(
    part: str,
    build: AttentionBuild,
    refusal: Callable[..., str],
    kind: Callable[[AttentionBuild, Library], AiterAttention],
) -> AttentionBackend:
    """A backend over the installed aiter; on a GPU it has attended once. `part` names it in errors.

    `refusal(build, architecture, newer=…)`: why it cannot, empty if it can. Raises `Unsupported` then, and
    `DeviceAbsent` without ROCm, aiter or a GPU of the table.
    """
    found, device = library.find(part), build.platform.device(build.device_index)
    architecture = library.architecture(device)
    if architecture not in FP8:
        raise DeviceAbsent(part, f"this GPU is {architecture}, and the kernels are for {' and '.join(FP8)}", INSTEAD)
    if reason := refusal(build, architecture, newer=found.newer):
        raise Unsupported(part, reason, INSTEAD)
    backend = kind(build, found)
    if device.type == "cuda":
        warm_up(backend, build)
    return backend


def warm_up(backend: AiterAttention, build: AttentionBuild) -> None:
    """Attend over planes of three pages that are made for it. Raises what aiter does where it cannot compile."""
    spec, layout, device = build.group.spec, build.layout, build.platform.device(build.device_index)
    page, pages = layout.page_tokens, 3
    planes = {one.name: torch.zeros(pages, *one.shape, dtype=DTYPES[one.dtype], device=device) for one in layout.planes}
    layer = LayerHandle(0, planes, torch.zeros(spec.q_heads, device=device) if spec.sinks else None)
    plan = backend.new_plan(Limits(1, pages, pages * page, page))
    for leading, n in KINDS:
        if leading and n > backend.longest_query:
            continue
        numbers = torch.arange(pages, dtype=torch.int32, device=device)
        length, host = torch.full((1,), n, dtype=torch.int32, device=device), np.array([n], np.int32)
        cu_q = torch.tensor([0, n], dtype=torch.int32).to(device)
        batch = Batch(1, n, leading, n * leading, cu_q, length, numbers[:n], numbers[:1], host, host)
        view = GroupView(page, numbers[None], numbers[:n], np.arange(pages, dtype=np.int32)[None])
        q = torch.zeros(n, spec.q_heads, spec.head_dim, dtype=DTYPES[spec.dtype], device=device)
        backend.fill(plan, batch, view)
        backend.attend(plan, layer, q, q.new_empty(n, spec.q_heads, spec.v_head_dim))
    plan.close()
