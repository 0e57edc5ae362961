"""The backend of one layer group: in `fill` FlashInfer's wrappers plan a step, once for all layers; then they run.

Leading rows are one call and the rest another. Pages are listed on the device; lengths are planned by on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionParts,
    AttentionPlan,
    Batch,
    GroupView,
    LayerHandle,
    Rows,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.layers import DTYPES as TORCH_DTYPES
from srtkit_plugin_attention_flashinfer import DTYPES, INSTEAD, MAX_Q_LEN, PART, Options, declared
from srtkit_plugin_attention_flashinfer.kernels import mask_kernel, pages_kernel
from srtkit_plugin_attention_flashinfer.library import KERNELS, Library
from srtkit_plugin_attention_flashinfer.sizes import (
    CUDA_CORE_RATIOS,
    MIB,
    crowded,
    schedule_bytes,
    tensor_cores,
    workspace_bytes,
)
from srtkit_plugin_attention_flashinfer.step import Call, FlashInferPlan, Numbers, Shape
from srtkit_plugin_attention_triton.refusals import why_not
from srtkit_plugin_attention_triton.slots import PlaneMover, scales_of, store

EMPTY: Mapping[str, Tensor] = MappingProxyType({})
LN_2 = math.log(2)
LONG = 65
"""Queries of a row from which on FlashInfer, on sm90, chooses its other kernels for prompts."""
BLOCK = 256
"""Pages that one program lists, and bytes of a mask that one writes."""
MASK_SLACK = 8
"""Bytes behind a mask that may be read."""


class FlashInferAttention(AttentionBackend):
    """Paged attention of one layer group by FlashInfer's wrappers."""

    def __init__(self, build: AttentionBuild, options: Options, library: Library) -> None:
        _refuse(build, options)
        self._spec = spec = build.group.spec
        self._platform = build.platform
        self._page = build.layout.page_tokens
        self._library = library
        self._tensor_cores = tensor_cores(spec, options)
        self._processors, self._prefill = _of_device(build.platform.device(build.device_index), options)
        if "fp8_kv" in spec.features:
            self._prefill = "fa2"  # the others would want queries in fp8 too
        # Partial results last for one call, and calls follow each other in one stream: all plans share their room.
        size = options.workspace_mib * MIB or workspace_bytes(spec, self._processors)
        self._workspace = build.platform.allocate("workspace", (size,), torch.uint8)
        self._math: dict[str, object] = {
            "num_qo_heads": spec.q_heads,
            "num_kv_heads": spec.kv_heads,
            "page_size": self._page,
            "window_left": spec.window - 1 if spec.window else -1,  # tokens before the query's own
            "logits_soft_cap": spec.soft_cap,
            "sm_scale": spec.scale,
            "q_data_type": TORCH_DTYPES[spec.dtype],
            "kv_data_type": TORCH_DTYPES[spec.kv_dtype],
        }
        self._parts = AttentionParts(mover=PlaneMover())
        self._compile(min(build.limits.max_tokens, LONG))

    def new_plan(self, limits: Limits) -> FlashInferPlan:
        """Buffers for steps up to `limits`; wrappers follow in the first `fill` of a kind. Raises `OutOfMemory`."""
        size = schedule_bytes(self._spec, limits.max_rows, limits.max_tokens, self._processors)
        return FlashInferPlan(self._platform, limits, size)

    def fill(self, plan: AttentionPlan, batch: Batch, view: GroupView) -> None:
        """Let the wrappers plan the step from the host's lengths, and list its pages on the device.

        Raises `Unsupported` for features but a tree mask, for longer leading queries, and where the host knows bounds
        only.
        """
        assert isinstance(plan, FlashInferPlan)
        unknown = batch.features - {"tree_mask"}
        if unknown:
            raise Unsupported(PART, f"does not understand the feature {', '.join(sorted(unknown))}")
        if batch.leading and batch.q_len > MAX_Q_LEN:
            raise Unsupported(PART, f"has at most {MAX_Q_LEN} queries in a leading row, not {batch.q_len}")
        if not batch.exact:
            raise Unsupported(PART, "plans by exact lengths, and the host has upper bounds only", INSTEAD)
        plan.batch, plan.view = batch, view
        plan.leading = plan.rest = None
        rows, leading = batch.rows, batch.leading
        numbers = plan.next_numbers()
        numbers.fill(batch, self._page)
        plan.indptr[: rows + 1].copy_(numbers.indptr[: rows + 1], non_blocking=True)
        if leading:
            shape = Shape(leading, batch.q_len, batch.tree is not None and batch.q_len > 1)
            plan.leading = (
                self._plan_trees(plan, shape, numbers) if shape.tree else self._plan_leading(plan, shape, numbers)
            )
        if leading < rows:
            plan.rest = self._plan_rest(plan, batch, numbers)
        self._list_pages(plan, batch, view)

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Copy k and v to the step's slots, in one launch."""
        assert isinstance(plan, FlashInferPlan)
        _, view = plan.step
        store(layer, view.slot_mapping, (k, v))

    def attend(
        self,
        plan: AttentionPlan,
        layer: LayerHandle,
        q: Tensor,
        out: Tensor,
        *,
        rows: Rows = Rows.ALL,
        fresh: tuple[Tensor, Tensor] | None = None,
        lse: Tensor | None = None,
    ) -> None:
        """As the contract says. Reads what is stored, never `fresh`."""
        assert isinstance(plan, FlashInferPlan)
        for call in plan.calls(rows):
            part = slice(call.begin, call.end)
            self._run(call.wrapper, layer, q[part], out[part], None if lse is None else lse[part])

    def parts(self) -> AttentionParts:
        """The slot mover."""
        return self._parts

    def close(self) -> None:
        """Free the room for partial results."""
        self._workspace = torch.empty(0)

    def _run(self, wrapper: Any, layer: LayerHandle, q: Tensor, out: Tensor, lse: Tensor | None) -> None:
        """Run a planned call. The library's sums are of base 2; sinks are joined afterwards, by the sums."""
        sums = lse
        if sums is None and self._spec.sinks:
            sums = q.new_empty(q.shape[:2], dtype=torch.float32)
        into = out if out.is_contiguous() else out.new_empty(out.shape)
        kv = (layer.planes["k"], layer.planes["v"])
        k_scale, v_scale = scales_of(layer)  # a scale of the library's is one number, known to the host
        q = _last_dense(q) if k_scale is None else self._scaled(q, k_scale, q.new_empty(q.shape))
        wrapper.run(q=q, paged_kv_cache=kv, out=into, lse=sums, return_lse=sums is not None)
        if v_scale is not None:
            self._scaled(into, v_scale, out)
        elif into is not out:
            out.copy_(into)
        if sums is not None:
            sums.mul_(LN_2)
            if self._spec.sinks:
                assert layer.sinks is not None, "the layer came without its sinks"
                out.mul_(torch.sigmoid(sums - layer.sinks)[..., None])
                torch.logaddexp(sums, layer.sinks, out=sums)

    def _scaled(self, x: Tensor, scale: Tensor, into: Tensor) -> Tensor:
        """x [T, q_heads, size] times a scale of all heads or of each KV head, float32; `into` may be x."""
        grouped = (len(x), self._spec.kv_heads, -1, x.shape[2])
        torch.mul(x.view(grouped), scale.view(-1, 1, 1), out=into.view(grouped))
        return into

    def _plan_leading(self, plan: FlashInferPlan, shape: Shape, numbers: Numbers) -> Call:
        """The first shape of a plan is planned into fixed buffers, for recording; others into the wrappers' own."""
        plan.fixed = plan.fixed or shape
        fixed = shape == plan.fixed
        n, one_token = shape.rows, shape.q_len == 1
        new = self._new_decode if one_token else self._new_uniform
        kind = f"{'decode' if one_token else 'uniform'}, {'fixed' if fixed else 'free'}"
        wrapper = plan.wrapper(kind, lambda: new(plan, n if fixed else 0))
        pages = plan.pages[: int(numbers.indptr[n])]
        uncut = fixed and crowded(self._spec, n, shape.q_len, self._processors)
        if one_token:
            wrapper.plan(
                indptr=numbers.indptr[: n + 1],
                indices=pages,
                last_page_len=numbers.last[:n],
                seq_lens=numbers.length[:n],
                head_dim=self._spec.head_dim,
                disable_split_kv=uncut,
                **self._math,
            )
        else:
            offsets = numbers.leading_cu_q[: n + 1], numbers.indptr[: n + 1]
            self._plan_prefill(wrapper, offsets, pages, numbers, slice(0, n), uniform=shape.q_len, uncut=uncut)
        return Call(0, n * shape.q_len, wrapper)

    def _plan_trees(self, plan: FlashInferPlan, shape: Shape, numbers: Numbers) -> Call:
        """Leading rows of drafts. What they see, by position too, is in a mask, which a kernel of ours writes."""
        plan.fixed = plan.fixed or shape
        fixed = shape == plan.fixed
        n, masks = shape.rows, plan.masks
        size = numbers.lay_masks(shape, packed=fixed)
        if fixed and masks.fixed is None:
            masks.fixed = self._platform.allocate("workspace", (masks.most(shape) + MASK_SLACK,), torch.uint8)
        mask = masks.fixed if fixed else masks.offsets.new_empty(size + MASK_SLACK, dtype=torch.uint8)
        assert mask is not None
        where, offsets = masks.offsets[: n + 1], numbers.mask[: n + 1]
        where.copy_(offsets, non_blocking=True)
        self._write_masks(plan, shape, mask)
        kind = f"trees, {'fixed' if fixed else 'free'}"
        wrapper = plan.wrapper(kind, lambda: self._new_trees(plan, n if fixed else 0))
        indptr = numbers.leading_cu_q[: n + 1], numbers.indptr[: n + 1]
        uncut = fixed and crowded(self._spec, n, shape.q_len, self._processors)
        pages = plan.pages[: int(numbers.indptr[n])]
        # What a recorded wrapper is given it copies to its buffer: of a mask that is there already, a byte onto itself.
        given = mask[:1] if fixed else mask
        self._plan_prefill(wrapper, indptr, pages, numbers, slice(0, n), uniform=shape.q_len, uncut=uncut, mask=given)
        where.copy_(offsets, non_blocking=True)  # it wrote those of masks that are not packed
        return Call(0, n * shape.q_len, wrapper)

    def _write_masks(self, plan: FlashInferPlan, shape: Shape, mask: Tensor) -> None:
        """Bring what each draft sees to the mask, at the plan's offsets."""
        batch, _ = plan.step
        assert batch.tree is not None
        bits = batch.tree.bits.contiguous()
        most = -(-shape.q_len * int(batch.host_context[: shape.rows].max()) // 8)
        mask_kernel[(shape.rows, triton.cdiv(most, BLOCK))](
            *(bits, batch.positions, batch.context, plan.masks.offsets, mask, shape.q_len),
            WORDS=bits.shape[2],
            WINDOW=self._spec.window,
            BLOCK=BLOCK,
        )

    def _plan_rest(self, plan: FlashInferPlan, batch: Batch, numbers: Numbers) -> Call:
        """Rows of any length, which are never recorded."""
        first, n = batch.leading, batch.rows - batch.leading
        wrapper = plan.wrapper("rest", lambda: self._new_prefill(plan.schedules[1], self._prefill))
        pages = plan.pages[int(numbers.indptr[first]) : int(numbers.indptr[batch.rows])]
        offsets = numbers.rest_cu_q[: n + 1], numbers.rest_indptr[: n + 1]
        self._plan_prefill(wrapper, offsets, pages, numbers, slice(first, batch.rows))
        return Call(first * batch.q_len, batch.tokens, wrapper)

    def _plan_prefill(
        self,
        wrapper: Any,
        offsets: tuple[Tensor, Tensor],
        pages: Tensor,
        numbers: Numbers,
        rows: slice,
        *,
        uniform: int | None = None,
        uncut: bool = False,
        mask: Tensor | None = None,
    ) -> None:
        """Plan rows with several queries: `offsets` (of queries, of pages) on the host, `pages` on the device.

        `mask` takes the place of window and order.
        """
        math = self._math if mask is None else self._math | {"window_left": -1}
        wrapper.plan(
            qo_indptr=offsets[0],
            paged_kv_indptr=offsets[1],
            paged_kv_indices=pages,
            paged_kv_last_page_len=numbers.last[rows],
            seq_lens=numbers.length[rows],
            head_dim_qk=self._spec.head_dim,
            causal=self._spec.causal,
            uniform_q_len=uniform,
            disable_split_kv=uncut,
            packed_custom_mask=mask,
            **math,
        )

    def _list_pages(self, plan: FlashInferPlan, batch: Batch, view: GroupView) -> None:
        """Bring the rows' pages from the table to one list. After planning: wrappers copy the list onto itself."""
        table = view.page_table
        most = -(-int(batch.host_context.max()) // self._page)
        pages_kernel[(batch.rows, triton.cdiv(most, BLOCK))](
            *(table, plan.indptr, plan.pages, batch.cu_q, batch.context, table.stride(0)),
            WINDOW=self._spec.window,
            PAGE=self._page,
            BLOCK=BLOCK,
        )

    def _new_decode(self, plan: FlashInferPlan, fixed: int) -> Any:
        """A wrapper for rows of one query; `fixed` rows of the plan's buffers, or 0."""
        buffers: dict[str, Tensor] = {}
        if fixed:
            buffers = {
                "paged_kv_indptr_buffer": plan.indptr[: fixed + 1],
                "paged_kv_indices_buffer": plan.pages,
                "paged_kv_last_page_len_buffer": plan.last[:fixed],
            }
        wrapper = self._library.decode(
            float_workspace_buffer=self._workspace,
            kv_layout="NHD",
            use_cuda_graph=bool(fixed),
            use_tensor_cores=self._tensor_cores,
            backend="fa2",
            **buffers,
        )
        wrapper.reset_workspace_buffer(float_workspace_buffer=self._workspace, int_workspace_buffer=plan.schedules[0])
        return wrapper

    def _new_uniform(self, plan: FlashInferPlan, fixed: int) -> Any:
        """A wrapper for leading rows of several queries; `fixed` rows of the plan's buffers, or 0."""
        return self._new_prefill(plan.schedules[0], "fa2", _buffers(plan, fixed) if fixed else EMPTY)

    def _new_trees(self, plan: FlashInferPlan, fixed: int) -> Any:
        """The same for rows with masks."""
        buffers: Mapping[str, Tensor] = EMPTY
        if fixed:
            mask, offsets = plan.masks.fixed, plan.masks.offsets[: fixed + 1]
            assert mask is not None
            buffers = _buffers(plan, fixed) | {"custom_mask_buf": mask, "mask_indptr_buf": offsets}
        return self._new_prefill(plan.schedules[0], "fa2", buffers)

    def _new_prefill(self, schedule: Tensor, backend: str, buffers: Mapping[str, Tensor] = EMPTY) -> Any:
        """A wrapper for rows of any length. `schedule` takes the place of the room that it brings."""
        wrapper = self._library.prefill(
            float_workspace_buffer=self._workspace,
            kv_layout="NHD",
            use_cuda_graph=bool(buffers),
            backend=backend,
            **buffers,
        )
        wrapper.reset_workspace_buffer(float_workspace_buffer=self._workspace, int_workspace_buffer=schedule)
        return wrapper

    def _compile(self, longest: int) -> None:
        """Plan one row of each kind, for which FlashInfer compiles its kernels, or loads compiled ones.

        Raises `DeviceAbsent` where it can do neither: at start, and not in the first step.
        """
        limits = Limits(1, longest, longest, self._page)
        plan = self.new_plan(limits)
        try:
            for n, leading in ((1, 1), (1, 0), (longest, 0)):
                self.fill(plan, *_one_row(plan.pages.device, n, leading, self._page, limits.max_pages))
        except (ImportError, OSError, RuntimeError) as error:
            cause = f"flashinfer {self._library.version} can neither build nor load its kernels: {error}"
            raise DeviceAbsent(PART, cause, KERNELS) from error
        finally:
            plan.close()


def _buffers(plan: FlashInferPlan, rows: int) -> dict[str, Tensor]:
    """The plan's own, for a prefill wrapper that is recorded."""
    return {
        "qo_indptr_buf": plan.cu_q[: rows + 1],
        "paged_kv_indptr_buf": plan.indptr[: rows + 1],
        "paged_kv_indices_buf": plan.pages,
        "paged_kv_last_page_len_buf": plan.last[:rows],
    }


def _one_row(device: torch.device, n: int, leading: int, page: int, pages: int) -> tuple[Batch, GroupView]:
    """A step of one row of n tokens on page 0."""
    lengths = np.array([n], np.int32)
    cu_q, context = torch.tensor([0, n], dtype=torch.int32), torch.tensor([n], dtype=torch.int32)
    zeros = torch.zeros(max(n, pages), dtype=torch.int32, device=device)
    batch = Batch(
        rows=1,
        tokens=n,
        leading=leading,
        q_len=n if leading else 0,
        cu_q=cu_q.to(device),
        context=context.to(device),
        positions=zeros[:n],
        slots=zeros[:1],
        host_q=lengths,
        host_context=lengths,
    )
    return batch, GroupView(page, zeros[None, :pages], zeros[:n], np.zeros((1, pages), np.int32))


def _of_device(device: torch.device, options: Options) -> tuple[int, str]:
    """Multiprocessors, and which of FlashInfer's backends takes prompts. Raises `DeviceAbsent` for an older GPU.

    Only on sm90 does "auto" choose among kernels that read what is given here.
    """
    if device.type != "cuda":
        return 132, "auto" if options.prefill == "auto" else options.prefill
    properties = torch.cuda.get_device_properties(device)
    if properties.major < 8:
        raise DeviceAbsent(PART, f"{properties.name} is sm{properties.major}{properties.minor}, before sm80", INSTEAD)
    hopper = properties.major == 9
    if options.prefill == "fa3" and not hopper:
        raise DeviceAbsent(PART, f'prefill = "fa3" is for sm90, and {properties.name} is not', 'set prefill = "auto"')
    return properties.multi_processor_count, options.prefill if hopper or options.prefill != "auto" else "fa2"


def _last_dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _refuse(build: AttentionBuild, options: Options) -> None:
    """Raise `Unsupported` unless spec, layout and options are among those declared."""
    spec = build.group.spec
    reason = why_not(PART, build, declared(DTYPES, fp8=True))
    if spec.head_dim != spec.v_head_dim:
        reason = reason or f"has no kernel for keys of size {spec.head_dim} with values of size {spec.v_head_dim}"
    if reason:
        raise Unsupported(PART, reason, INSTEAD)
    ratio = spec.q_heads // spec.kv_heads
    if not tensor_cores(spec, options) and ratio not in CUDA_CORE_RATIOS:
        cause = f"has no decode kernel without tensor cores for {ratio} query heads on a KV head"
        raise Unsupported(PART, cause, 'set tensor_cores = "auto"')
