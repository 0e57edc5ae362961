"""Backends that do not keep their word: capabilities, layouts, optional calls, refusals. One fault each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionParts,
    AttentionPlan,
    AttentionSpec,
    Batch,
    DenseAttention,
    GroupView,
    LayerHandle,
)
from srtkit.spec.capabilities import YES, No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.kv import KVLayout
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.attention.row_by_row import RowByRow
from srtkit_conformance.mutants.attention.wrap import (
    Call,
    Wrapped,
    WrappedAdvance,
    WrappedDense,
    WrappedMover,
    WrappedPlan,
    claiming,
    respecified,
    wrapped,
)

NO_LAYOUT = "float8_e5m2"

# --- capabilities and layouts


@mutant(
    "layouts_alternate",
    of="torch",
    sentence="kv_layouts answers every second call otherwise",
    killed_by=("attention.layout.pure",),
)
def layouts_alternate(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """State behind a function that must be pure."""
    calls = itertools.count()

    def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
        found = descriptor.kv_layouts(spec, page_size, facts)
        return [replace(one, kernel_pages=(1,)) for one in found] if next(calls) % 3 == 2 else found

    return replace(descriptor, kv_layouts=kv_layouts)


@mutant(
    "layout_beyond_pages",
    of="torch",
    sentence="a layout is offered for page sizes that are not declared",
    killed_by=("attention.layout.agrees",),
)
def layout_beyond_pages(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Core would choose it."""

    def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
        sizes = descriptor.capabilities(facts).page_sizes
        found = descriptor.kv_layouts(spec, page_size if page_size in sizes else sizes[0], facts)
        return [replace(one, page_tokens=page_size, kernel_pages=(1,)) for one in found]

    return replace(descriptor, kv_layouts=kv_layouts)


@mutant(
    "kv_dtype_without_layout",
    of="torch",
    sentence="declares a dtype of KV that it offers no layout for",
    killed_by=("attention.numerics.matrix",),
)
def kv_dtype_without_layout(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Whoever asks for it is refused by core, which finds no layout."""

    def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
        can = descriptor.capabilities(facts)
        return replace(can, kv_dtypes=can.kv_dtypes | {NO_LAYOUT})

    def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
        return () if spec.kv_dtype == NO_LAYOUT else descriptor.kv_layouts(spec, page_size, facts)

    return replace(descriptor, capabilities=capabilities, kv_layouts=kv_layouts)


@mutant(
    "feature_misspelt",
    of="torch",
    sentence="a feature is declared under a name that the contract does not have",
    killed_by=("attention.layout.capabilities",),
)
def feature_misspelt(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Beside the right one, so that everything works."""

    def capabilities(facts: DeviceFacts) -> object:
        can = descriptor.capabilities(facts)
        return replace(can, features=can.features | {"softcap"})

    return replace(descriptor, capabilities=capabilities)  # type: ignore[arg-type]


class SwappedPlanes(Wrapped):
    """K where V belongs."""

    def handle(self, layer: LayerHandle) -> LayerHandle:
        """Consistently, so that only others notice."""
        if self.spec.mla is not None:
            return layer
        scales = layer.scales
        return replace(layer, planes={"k": layer.planes["v"], "v": layer.planes["k"]}, scales=scales)


@mutant(
    "planes_swapped",
    of="torch",
    sentence="K is kept in the plane v and V in the plane k",
    killed_by=("attention.layout.content",),
)
def planes_swapped(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Another backend on the same pages reads nonsense."""
    return wrapped(descriptor, SwappedPlanes)


class WithoutMover(Wrapped):
    """Has one call fewer than it says."""

    def parts(self) -> AttentionParts:
        """No mover."""
        return replace(super().parts(), mover=None)


@mutant(
    "part_missing",
    of="torch",
    sentence="move_slots is declared and parts() has none",
    killed_by=("attention.layout.parts",),
)
def part_missing(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Found when the first tree is accepted, else."""
    return wrapped(descriptor, WithoutMover)


@mutant(
    "claims_invariance",
    of="torch",
    sentence="declares batch invariance, and computes a shared prefix apart",
    killed_by=("attention.steps.alone",),
)
def claims_invariance(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Equal within rounding, not bit by bit."""
    return claiming(descriptor, batch_invariant=YES)


# --- refusals


@mutant(
    "undeclared_sinks",
    of="torch",
    sentence="sinks are not declared, and ignored where asked for",
    killed_by=("attention.features.sinks",),
)
def undeclared_sinks(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Wrong numbers in place of a refusal."""
    facts = DeviceFacts("any", "any", "any")
    features = descriptor.capabilities(facts).features - {"sinks"}
    quiet = respecified(descriptor, lambda spec: replace(spec, sinks=False))
    return claiming(quiet, features=features)


class DropsFeatures(Wrapped):
    """What it does not know is not there."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Known features only."""
        return replace(batch, features=batch.features & {"tree_mask"}), view


@mutant(
    "unknown_feature_taken",
    of="torch",
    sentence="fill takes a batch feature that it does not know",
    killed_by=("attention.refusals.batch_features",),
)
def unknown_feature_taken(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A later version's feature is dropped without a word."""
    return wrapped(descriptor, DropsFeatures)


class RoundsDoubles(RowByRow):
    """Halves them."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """In bfloat16."""
        return super().scores(q.bfloat16().float() if self.spec.dtype == "float64" else q, k)


@mutant(
    "doubles_taken",
    of="torch",
    sentence="float64 is not declared, taken, and computed in bfloat16",
    killed_by=("attention.refusals.dtypes",),
)
def doubles_taken(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The bits are there, the precision is not."""

    def build(build: AttentionBuild) -> AttentionBackend:
        spec = build.group.spec
        if spec.dtype != "float64":
            return descriptor.build(build)
        single = replace(spec, dtype="float32", kv_dtype="float32")
        return RoundsDoubles(descriptor.build(replace(build, group=replace(build.group, spec=single))), build)

    return replace(descriptor, build=build)


class CutsHeads(Wrapped):
    """Elements past 1024 do not count."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """As far as the kernel's tile goes."""
        small = replace(layer, planes={name: plane[..., :1024].contiguous() for name, plane in layer.planes.items()})
        part = torch.empty(*how.out.shape[:-1], 1024, dtype=how.out.dtype)
        super().call(plan, small, replace(how, q=how.q[..., :1024].contiguous(), out=part, fresh=None))
        how.out[..., :1024] = part

    def store(self, plan: AttentionPlan, layer: LayerHandle, k: Tensor, v: Tensor) -> None:
        """Into the first 1024 elements."""
        assert isinstance(plan, WrappedPlan)
        slots = plan.filled[1].slot_mapping.long()
        for name, x in (("k", k), ("v", v)):
            layer.planes[name][slots // self.page, slots % self.page] = x


@mutant(
    "large_heads_taken",
    of="torch",
    sentence="heads beyond the declared sizes are taken, and cut to 1024",
    killed_by=("attention.refusals.shapes",),
)
def large_heads_taken(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Falls to the largest kernel."""

    def build(build: AttentionBuild) -> AttentionBackend:
        spec = build.group.spec
        if spec.head_dim <= 1024:
            return descriptor.build(build)
        cut = replace(spec, head_dim=1024, v_head_dim=1024)
        return CutsHeads(descriptor.build(replace(build, group=replace(build.group, spec=cut))), build)

    return replace(descriptor, build=build)


class FewDrafts(RowByRow):
    """Room for the declared number of queries."""

    def visible(self, batch: Batch, row: int, tokens: slice, context: int) -> Tensor:
        """Queries beyond it are not masked."""
        see = super().visible(batch, row, tokens, context)
        return torch.ones_like(see) if row < batch.leading and len(see) > 64 else see


@mutant(
    "long_drafts_taken",
    of="torch",
    sentence="leading rows of more queries than declared are taken, and not masked",
    killed_by=("attention.refusals.q_len",),
)
def long_drafts_taken(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Beyond the kernel's room."""
    return claiming(wrapped(descriptor, FewDrafts), max_q_len_decode=64)


class SilentSums(Wrapped):
    """lse stays as it was."""

    def call(self, plan: WrappedPlan, layer: LayerHandle, how: Call) -> None:
        """Not written."""
        super().call(plan, layer, replace(how, lse=None))


@mutant(
    "lse_not_written",
    of="torch",
    sentence="lse is not declared, and left unwritten where asked for",
    killed_by=("attention.refusals.lse",),
)
def lse_not_written(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A merge then reads what was there."""
    return claiming(wrapped(descriptor, SilentSums), lse=No("the kernel keeps it"))


class BoundsAreLengths(Wrapped):
    """Host lengths are exact, it thinks."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """Whatever the flag says."""
        return replace(batch, exact=True), view


@mutant(
    "bounds_are_lengths",
    of="torch",
    sentence="upper bounds on the host are taken for lengths",
    killed_by=("attention.refusals.host_lengths",),
)
def bounds_are_lengths(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Declares that it takes bounds."""
    return claiming(wrapped(descriptor, BoundsAreLengths), host_lengths="upper")


# --- optional calls


class StandsStill(WrappedAdvance):
    """Does nothing when told that lengths grew."""

    def advance(self, plan: AttentionPlan) -> None:
        """Nothing."""


class KeepsLengths(Wrapped):
    """Its advance."""

    def parts(self) -> AttentionParts:
        """With one that does nothing."""
        return replace(super().parts(), advance=self._still)

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        super().__init__(inner, build)
        self._still = StandsStill(self)


@mutant(
    "advance_does_nothing",
    of="torch",
    sentence="advance leaves the plan as it was filled",
    killed_by=("attention.parts.advance",),
)
def advance_does_nothing(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """The second draft token sees the first one's context."""
    return wrapped(descriptor, KeepsLengths)


class BaseTwoMerge(WrappedDense):
    """exp2 over sums of base e."""

    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """Weights are too even."""
        share = 0.6931471805599453
        total = torch.logaddexp(lse, lse2)
        inner, inner2 = lse * share, lse2 * share
        self.inner.merge(out, inner, out2, inner2)
        lse.copy_(total)


class MergesWrongly(Wrapped):
    """Its merge."""

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """In base 2."""
        return BaseTwoMerge(self, dense)


@mutant(
    "merge_base_two",
    of="torch",
    sentence="merge weighs parts by 2 ** lse",
    killed_by=("attention.parts.merge", "attention.parts.prefix_chunks"),
)
def merge_base_two(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Two halves of equal weight are merged rightly."""
    return wrapped(descriptor, MergesWrongly)


class KeepsFirstSum(WrappedDense):
    """One result of two."""

    def merge(self, out: Tensor, lse: Tensor, out2: Tensor, lse2: Tensor) -> None:
        """lse stays that of the first part."""
        self.inner.merge(out, lse.clone(), out2, lse2)


class MergesOnce(Wrapped):
    """Its merge."""

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """Right for the last part."""
        return KeepsFirstSum(self, dense)


@mutant(
    "merge_keeps_lse",
    of="torch",
    sentence="merge leaves lse as it was",
    killed_by=("attention.parts.prefix_chunks", "attention.parts.merge"),
    note="merge_base_two's other half: a merge that is wrong shows alone and in use",
)
def merge_keeps_lse(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Two parts are right, three are not."""
    return wrapped(descriptor, MergesOnce)


class TopLeftDense(WrappedDense):
    """The first query stands at the first key."""

    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """Keys after the last query's are never seen."""
        if not causal:
            self.inner.attend_dense(q, k, v, cu, out, causal=False, lse=lse)
            return
        bounds = [list(zip(x.tolist()[:-1], x.tolist()[1:], strict=True)) for x in cu]
        keep = [min(k1 - k0, q1 - q0) for (q0, q1), (k0, k1) in zip(*bounds, strict=True)]
        index = torch.cat([torch.arange(k0, k0 + n) for (k0, _), n in zip(bounds[1], keep, strict=True)])
        fewer = torch.tensor([0, *itertools.accumulate(keep)], dtype=torch.int32)
        self.inner.attend_dense(q, k[index], v[index], (cu[0], fewer), out, causal=True, lse=lse)


class AlignsWrongly(Wrapped):
    """Its dense attention."""

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """Top-left."""
        return TopLeftDense(self, dense)


@mutant(
    "dense_top_left",
    of="torch",
    sentence="attend_dense masks top-left aligned",
    killed_by=("attention.parts.dense", "attention.parts.dense_features"),
)
def dense_top_left(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right where a row has as many keys as queries."""
    return wrapped(descriptor, AlignsWrongly)


class BareDense(WrappedDense):
    """Dense attention of another backend."""

    def __init__(self, owner: Wrapped, inner: DenseAttention, bare: DenseAttention) -> None:
        super().__init__(owner, inner)
        self._bare = bare

    def attend_dense(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu: tuple[Tensor, Tensor],
        out: Tensor,
        *,
        causal: bool = True,
        lse: Tensor | None = None,
    ) -> None:
        """With the other's spec."""
        self._bare.attend_dense(q, k, v, cu, out, causal=causal, lse=lse)


class BindsDefaults(Wrapped):
    """Its dense attention is that of a backend for a plainer spec."""

    def __init__(self, inner: AttentionBackend, build: AttentionBuild, plain: AttentionBackend) -> None:
        self._plain = plain
        super().__init__(inner, build)

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """The plainer one."""
        bare = self._plain.parts().dense
        assert bare is not None
        return BareDense(self, dense, bare)


@mutant(
    "dense_without_spec",
    of="torch",
    sentence="attend_dense leaves out the group's window and soft cap",
    killed_by=("attention.parts.dense_features",),
)
def dense_without_spec(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Bound with defaults."""
    plain = respecified(descriptor, lambda spec: replace(spec, window=0, soft_cap=0.0))
    return wrapped(descriptor, lambda inner, build: BindsDefaults(inner, build, plain.build(build)))


class RawGather(WrappedDense):
    """Values as stored."""

    def gather(
        self, plan: AttentionPlan, layer: LayerHandle, row: int, start: int, stop: int, out: tuple[Tensor, Tensor]
    ) -> None:
        """Without scales."""
        super().gather(plan, replace(layer, scales=None), row, start, stop, out)


class GathersRaw(Wrapped):
    """Its gather."""

    def wrap_dense(self, dense: DenseAttention) -> DenseAttention:
        """Not dequantised."""
        return RawGather(self, dense)


@mutant(
    "gather_raw",
    of="torch",
    sentence="gather does not multiply fp8 by its scale",
    killed_by=("attention.parts.gather",),
)
def gather_raw(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Other dtypes are right."""
    return wrapped(descriptor, GathersRaw)


class MovesOnePlane(WrappedMover):
    """The first plane."""

    def move_slots(self, layer: LayerHandle, source: Tensor, target: Tensor) -> None:
        """V goes into a copy."""
        (first, plane), *others = layer.planes.items()
        planes = {first: plane, **{name: other.clone() for name, other in others}}
        super().move_slots(replace(layer, planes=planes), source, target)


class MovesHalf(Wrapped):
    """Its mover."""

    def parts(self) -> AttentionParts:
        """One plane only."""
        return self._half

    def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
        super().__init__(inner, build)
        mover = inner.parts().mover
        assert mover is not None
        self._half = replace(super().parts(), mover=MovesOnePlane(self, mover))


@mutant(
    "moves_one_plane",
    of="torch",
    sentence="move_slots moves K and leaves V",
    killed_by=("attention.parts.move_slots",),
)
def moves_one_plane(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Tokens become mixtures of two."""
    return wrapped(descriptor, MovesHalf)
