"""Backends that rotate and store in one call: a legal one, and those that do it wrongly."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionParts,
    AttentionPlan,
    LayerHandle,
    RotatedStore,
    Rotation,
)
from srtkit.spec.capabilities import YES
from srtkit_conformance.kits.models.operators import rms_norm
from srtkit_conformance.mutant import mutant, variant
from srtkit_conformance.mutants.attention.wrap import Wrapped, claiming, wrapped


class Rotating(RotatedStore):
    """Rotates in float32, then stores. Legal as it stands."""

    def __init__(self, owner: Wrapped) -> None:
        self.owner = owner

    def store_rotated(
        self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation
    ) -> None:
        """Norm, rotation, store."""
        if rotation.norms is not None:
            q_weight, k_weight, eps = rotation.norms
            q.copy_(rms_norm(q, q_weight, eps))
            k.copy_(rms_norm(k, k_weight, eps))
        for x in (q, k):
            turn(x, rotation.cos, rotation.sin)
        self.owner.store(plan, layer, k, v)


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate heads in place."""
    part = x[..., : cos.shape[-1]]
    part.copy_(part.float() * cos.float() + part.float().roll(cos.shape[-1] // 2, -1) * sin.float())


class StoresFirst(Rotating):
    """What is stored is the key before its rotation."""

    def store_rotated(
        self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation
    ) -> None:
        """With a copy of k."""
        kept = k.clone()
        super().store_rotated(plan, layer, q, k, v, rotation)
        self.owner.store(plan, layer, kept, v)


class WithoutNorms(Rotating):
    """Takes the weights for a hint."""

    def store_rotated(
        self, plan: AttentionPlan, layer: LayerHandle, q: Tensor, k: Tensor, v: Tensor, rotation: Rotation
    ) -> None:
        """Rotation only."""
        super().store_rotated(plan, layer, q, k, v, Rotation(rotation.cos, rotation.sin))


def _with(descriptor: AttentionDescriptor, part: type[Rotating]) -> AttentionDescriptor:
    class WithPart(Wrapped):
        """Has the part."""

        def __init__(self, inner: AttentionBackend, build: AttentionBuild) -> None:
            super().__init__(inner, build)
            self._rotating = replace(super().parts(), rotated=part(self))

        def parts(self) -> AttentionParts:
            """With the part."""
            return self._rotating

    return claiming(wrapped(descriptor, WithPart), store_rotated=YES)


@variant("rotating", of="torch", sentence="rotates and stores in one call")
def rotating(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """In three."""
    return _with(descriptor, Rotating)


@mutant(
    "stores_unrotated",
    of="torch",
    sentence="store_rotated stores K as it came",
    killed_by=("attention.parts.store_rotated",),
)
def stores_unrotated(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Positions are lost."""
    return _with(descriptor, StoresFirst)


@mutant(
    "rotates_unnormed",
    of="torch",
    sentence="store_rotated leaves the norms out",
    killed_by=("attention.parts.store_rotated",),
    note="the other half of what one call does; one check holds both",
)
def rotates_unnormed(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Models without such norms work."""
    return _with(descriptor, WithoutNorms)
