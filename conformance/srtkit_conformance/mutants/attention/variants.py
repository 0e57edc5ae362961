"""Legal backends that do it otherwise: every check must pass on them. They guard against checks that are too strict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionParts,
    AttentionSpec,
    Batch,
    GroupView,
    LayerHandle,
    check_spec,
)
from srtkit.spec.capabilities import YES, No
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.kv import KVLayout, Plane
from srtkit_conformance.mutant import variant
from srtkit_conformance.mutants.attention.row_by_row import RowByRow
from srtkit_conformance.mutants.attention.wrap import Call, Wrapped, WrappedPlan, claiming, with_device_lengths, wrapped

PART = "attention:variant"


@variant("row_by_row", of="torch", sentence="computes every row by itself, and declares batch invariance")
def row_by_row(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """No row knows of another."""
    return claiming(wrapped(descriptor, RowByRow), batch_invariant=YES, prefix_groups=No("rows are computed apart"))


class Tiles(RowByRow):
    """32 keys at a time."""

    tile = 32


@variant("tiles", of="torch", sentence="goes over the keys in tiles and merges them in float32")
def tiles(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """As kernels with online softmax and split-KV do."""
    return wrapped(descriptor, Tiles)


class WholePages(RowByRow):
    """Selects after reading."""

    whole_pages = True


@variant("whole_pages", of="torch", sentence="reads the unused tail of a row's last page and masks it")
def whole_pages(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """What the contract allows: the tail is finite."""
    return wrapped(descriptor, WholePages)


class HeadMajor(Wrapped):
    """Shows the inner backend head-major pages as token-major views."""

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """Planes [pages, heads, tokens, size] seen as [pages, tokens, heads, size]."""
        if self.spec.mla is not None:
            return layer
        return replace(layer, planes={name: plane.transpose(1, 2) for name, plane in layer.planes.items()})


@variant("head_major", of="torch", sentence="prefers a layout of its own, pages with the head outside the token")
def head_major(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The kit must test layouts that it does not know."""

    def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
        layouts = descriptor.kv_layouts(spec, page_size, facts)
        if spec.mla is not None or not layouts:
            return layouts
        shape = (spec.kv_heads, page_size, spec.head_dim)
        planes = (Plane("k", shape, spec.kv_dtype), Plane("v", shape, spec.kv_dtype))
        return (KVLayout("hnd/1", page_size, planes, (page_size,), any_page_stride=True), *layouts)

    return replace(wrapped(descriptor, HeadMajor), kv_layouts=kv_layouts)


class DeviceLengths(Wrapped):
    """Does not look at the host's lengths."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Lengths from the device."""
        return with_device_lengths(batch), view


@variant("device_lengths", of="torch", sentence="takes upper bounds on the host")
def device_lengths(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Exact lengths come from the device."""
    return claiming(wrapped(descriptor, DeviceLengths), host_lengths="upper")


class Narrow(Wrapped):
    """Refuses what it does not declare."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """No features, one query in leading rows."""
        if batch.features or batch.q_len > 1:
            raise Unsupported(PART, "takes leading rows of one query, without trees")
        return batch, view

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """Without lse."""
        if how.lse is not None:
            raise Unsupported(PART, "does not give log-sum-exp")
        super().call(plan, layer, how)

    def parts(self) -> AttentionParts:
        """None."""
        return AttentionParts()


@variant(
    "narrow",
    of="torch",
    sentence="declares one dtype, few shapes, no feature and no optional call, and refuses the rest",
)
def narrow(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Every declared no must be met by a refusal."""
    no = No("this kernel is small")
    honest = claiming(
        descriptor,
        dtypes=frozenset({"float32"}),
        kv_dtypes=frozenset({"float32"}),
        head_dims=frozenset({64, 128}),
        page_sizes=(32,),
        features=frozenset(),
        max_gqa_ratio=4,
        max_q_len_decode=1,
        **dict.fromkeys(("lse", "dense", "advance", "move_slots", "prefix_groups"), no),
    )

    def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
        return descriptor.kv_layouts(spec, page_size, facts) if page_size == 32 else ()

    def build(build: AttentionBuild) -> AttentionBackend:
        facts = DeviceFacts("any", "any", "any")
        if reason := check_spec(PART, build.group.spec, honest.capabilities(facts)):
            raise Unsupported(PART, reason)
        return Narrow(descriptor.build(build), build)

    return replace(honest, kv_layouts=kv_layouts, build=build)
