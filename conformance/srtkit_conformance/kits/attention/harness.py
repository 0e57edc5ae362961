"""One backend under test: its capabilities, shapes that it declares, and building it for a case. Knows no check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from srtkit.spec.attention import (
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionPlan,
    AttentionSpec,
    LayerGroup,
    MlaDims,
)
from srtkit.spec.errors import Unsupported
from srtkit.spec.facts import Limits
from srtkit.spec.kv import KVLayout
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.case import Case, Row
from srtkit_conformance.kits.needs import needs_of
from srtkit_conformance.target import Target

PREFERRED_DTYPES = ("bfloat16", "float16", "float32")
MLA_DIMS = (MlaDims(512, 64, 128, 128), MlaDims(256, 64, 64, 64), MlaDims(64, 16, 32, 32))
"""The usual sizes first; a backend that declares MLA must declare rank + rope of one of them as a head size."""


class Harness:
    """A target and its platform for the time of one check."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.descriptor: AttentionDescriptor = target.descriptor
        self.can: AttentionCapabilities = self.descriptor.capabilities(target.facts)
        self.platform = target.platform()
        self.device = self.platform.device(target.device_index)

    @property
    def dtypes(self) -> list[str]:
        """Declared dtypes, the most usual first."""
        known = [name for name in PREFERRED_DTYPES if name in self.can.dtypes]
        return known or sorted(self.can.dtypes)

    @property
    def page(self) -> int:
        """16, or the smallest declared page size above it: short rows then have several pages."""
        return min((size for size in self.can.page_sizes if size >= 16), default=max(self.can.page_sizes))

    @property
    def head_dim(self) -> int:
        """64, or the smallest declared head size."""
        return 64 if 64 in self.can.head_dims else min(self.can.head_dims)

    @property
    def mla(self) -> MlaDims:
        """Sizes of a latent layer that it declares."""
        for dims in MLA_DIMS:
            if dims.rank + dims.rope in self.can.head_dims:
                return dims
        raise Failed("declares the feature mla and no head size of 576, 320 or 80 (latent + rope part)")

    def has(self, feature: str) -> bool:
        """Whether it declares the feature."""
        return feature in self.can.features

    def case(self, rows: Iterable[Row], **changes: Any) -> Case:
        """A case of shapes that it declares, changed as told."""
        ratio = min(3, self.can.max_gqa_ratio)
        case = Case(tuple(rows), self.dtypes[0], head_dim=self.head_dim, page=self.page, ratio=ratio)
        return replace(case, **changes)

    def layouts(self, spec: AttentionSpec, page: int) -> Sequence[KVLayout]:
        """What it offers for a layer."""
        return self.descriptor.kv_layouts(spec, page, self.target.facts)

    def rig(self, *cases: Case) -> Rig:
        """A backend for cases of one spec. Raises `Unsupported` where the plugin refuses."""
        spec, page = cases[0].spec, cases[0].page
        assert all((case.spec, case.page) == (spec, page) for case in cases), "one backend has one spec and page size"
        layouts = self.layouts(spec, page)
        if not layouts:
            raise Unsupported(self.target.part, f"offers no layout for pages of {page} tokens and {spec}")
        return Rig(self, spec, layouts[0], limits_of(cases, page, layouts[0].over_read))


class Rig:
    """A backend built for one spec, with limits that cover its cases."""

    def __init__(self, harness: Harness, spec: AttentionSpec, layout: KVLayout, limits: Limits) -> None:
        target = harness.target
        self.harness = harness
        self.spec = spec
        self.layout = layout
        self.limits = limits
        group = LayerGroup("group", spec, (0, 1))
        build = AttentionBuild(group, layout, limits, harness.platform, target.device_index, target.options)
        self.build = replace(build, needs=needs_of(harness.descriptor, target.options, {"attention": build}))
        self.backend = harness.descriptor.build(self.build)

    def new_plan(self) -> AttentionPlan:
        """Another plan for the largest step."""
        return self.backend.new_plan(self.limits)


def limits_of(cases: Sequence[Case], page: int, over_read: int) -> Limits:
    """Limits that just cover the cases, their history being stored in one step."""
    rows = max(len(case.rows) + case.padding for case in cases)
    tokens = max(max(case.tokens + sum(case.padding_queries), sum(row.stored for row in case.rows)) for case in cases)
    context = max(row.context for case in cases for row in case.rows)
    if over_read:  # a kernel may look at so many entries past a row's end
        context = (-(-context // page) + over_read) * page
    return Limits(rows, max(1, tokens), context, page)
