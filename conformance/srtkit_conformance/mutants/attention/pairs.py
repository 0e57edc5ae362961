"""Backends that are right for each of two things and wrong for both together. One pair each."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from srtkit.spec.attention import AttentionDescriptor, Batch, GroupView
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.attention.numbers import NoRope, NoTree
from srtkit_conformance.mutants.attention.row_by_row import RowByRow
from srtkit_conformance.mutants.attention.wrap import WrappedPlan, respecified, wrapped

NOTE = "a pair shows in the matrix alone, whichever it is"


@mutant(
    "soft_cap_lost_beside_sinks",
    of="torch",
    sentence="scores of a layer with sinks are not capped",
    killed_by=("attention.numerics.matrix",),
    note=NOTE,
)
def soft_cap_lost_beside_sinks(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A kernel for each feature, and none for both."""
    return respecified(descriptor, lambda spec: replace(spec, soft_cap=0.0 if spec.sinks else spec.soft_cap))


class NoTreeInSmallPages(NoTree):
    """The kernel with trees was made for pages of 16 and more; below, another one runs."""

    def see(self, plan: WrappedPlan, batch: Batch, view: GroupView) -> tuple[Batch, GroupView]:
        """With the mask where pages are large enough."""
        return (batch, view) if view.page_tokens >= 16 else super().see(plan, batch, view)


@mutant(
    "tree_lost_in_small_pages",
    of="torch",
    sentence="drafts in pages of less than 16 tokens are masked as a chain",
    killed_by=("attention.numerics.matrix",),
    note=NOTE,
)
def tree_lost_in_small_pages(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Trees are right by themselves, and so are small pages."""
    return wrapped(descriptor, NoTreeInSmallPages)


class NoRopeInLargePages(NoRope):
    """Reads the rope part at an offset that is right for kernel pages of 64 tokens and less."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Without the rope part where pages are larger."""
        return super().scores(q, k) if self.page > 64 else RowByRow.scores(self, q, k)


@mutant(
    "rope_lost_in_large_pages",
    of="torch",
    sentence="scores of a latent layer in pages of more than 64 tokens leave the rope part out",
    killed_by=("attention.numerics.matrix",),
    note=NOTE,
)
def rope_lost_in_large_pages(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Latent layers are right by themselves, and so are large pages."""
    return wrapped(descriptor, NoRopeInLargePages)
