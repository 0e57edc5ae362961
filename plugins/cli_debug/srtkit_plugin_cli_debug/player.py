"""Plays a dump on one backend: builds it for the dump's spec and layout, fills, stores, attends. Judges nothing.

With `reused` the plan has been filled twice before, for longer and for shorter rows over other pages, as plans are
between steps: what a backend keeps from an earlier fill then shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionDescriptor,
    AttentionPlan,
    LayerGroup,
    LayerHandle,
    Rows,
    check_spec,
)
from srtkit.spec.errors import DeviceAbsent, Unsupported
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import KVLayout
from srtkit.spec.platform import Platform, PlatformBuild, PlatformDescriptor
from srtkit_plugin_attention_shadow.dump import Dump, Origin
from srtkit_plugin_attention_shadow.origin import origin_of
from srtkit_plugin_cli_debug.plugins import descriptor_of, options_of


class Machine:
    """A platform and the facts of its first device. Raises `DeviceAbsent` when it has none."""

    def __init__(self, name: str) -> None:
        descriptor: PlatformDescriptor = descriptor_of("platform", name)
        options = descriptor.options()
        devices = descriptor.probe(options)
        if not devices:
            remedy = "--platform cpu replays on any machine what runs there"
            raise DeviceAbsent(f"platform:{name}", "its device is not here", remedy)
        self.facts: DeviceFacts = devices[0]
        self.platform: Platform = descriptor.build(PlatformBuild(self.facts, options))

    @property
    def device(self) -> torch.device:
        """Where tensors are."""
        return self.platform.device(0)


class Player:
    """One backend by name, on one machine."""

    def __init__(self, name: str, machine: Machine, sets: Sequence[str] = ()) -> None:
        self.name = name
        self.part = f"attention:{name}"
        self._machine = machine
        self._descriptor: AttentionDescriptor = descriptor_of("attention", name)
        self._options = options_of(self.part, self._descriptor.options, sets)

    def origin(self, dump: Dump) -> Origin:
        """The plugin that plays the dump."""
        backend = self._build(dump)
        try:
            return origin_of(backend, "attention")
        finally:
            backend.close()

    @torch.inference_mode()
    def play(self, dump: Dump, *, reused: bool = False, planes: Mapping[str, Tensor] | None = None) -> Tensor:
        """out [T, q_heads, dv] on the CPU, NaN where the call does not cover. `planes`: pages instead of the dump's,
        and nothing is stored. Raises `Unsupported` where the backend refuses the dump's spec, layout or step.
        """
        device = self._machine.device
        backend = self._build(dump)
        layer = replace(dump, planes=dict(planes)).handle(device) if planes else dump.handle(device)
        try:
            plan = backend.new_plan(_limits(dump))
            try:
                for earlier in _earlier(dump) if reused else ():
                    self._step(backend, plan, earlier, layer)
                stored = None if planes else dump
                return self._step(backend, plan, dump, layer, stored)
            finally:
                plan.close()
        finally:
            backend.close()

    def _step(
        self, backend: AttentionBackend, plan: AttentionPlan, dump: Dump, layer: LayerHandle, stored: Dump | None = None
    ) -> Tensor:
        """One step; the entries of `stored`, if it has any, are stored."""
        device = self._machine.device
        backend.fill(plan, dump.batch(device), dump.view(device))
        fresh = None
        if stored is not None and stored.k is not None and stored.v is not None:
            fresh = (stored.k.to(device), stored.v.to(device))
            backend.store(plan, layer, *fresh)
        q = dump.q.to(device)
        out = torch.full((*q.shape[:2], dump.meta.spec.v_head_dim), torch.nan, dtype=q.dtype, device=device)
        backend.attend(plan, layer, q, out, rows=Rows(dump.meta.covered), fresh=fresh)
        return out.cpu()

    def _build(self, dump: Dump) -> AttentionBackend:
        meta, facts = dump.meta, self._machine.facts
        spec, layout = meta.spec, meta.layout
        if problem := check_spec(self.part, spec, self._descriptor.capabilities(facts)):
            raise Unsupported(self.part, f"{problem}, which the dump needs", "replay on another backend")
        offered = self._descriptor.kv_layouts(spec, layout.page_tokens, facts)
        if _adjacent(layout) not in map(_adjacent, offered):
            names = ", ".join(one.name for one in offered) or "none"
            cause = (
                f"does not read the dump's layout {layout.name} with pages of {layout.page_tokens} (it does: {names})"
            )
            raise Unsupported(self.part, cause, "replay on another backend")
        group = LayerGroup(meta.group, spec, (meta.layer,))
        build = AttentionBuild(group, layout, _limits(dump), self._machine.platform, 0, self._options)
        return self._descriptor.build(build)


def _adjacent(layout: KVLayout) -> KVLayout:
    """As pages stand in a dump: who could read them apart reads them so, too."""
    return replace(layout, any_page_stride=False)


def _limits(dump: Dump) -> Limits:
    """Limits that just cover the dump and what is filled before it."""
    page = dump.meta.layout.page_tokens
    return Limits(dump.rows, len(dump.q), dump.page_table.shape[1] * page, page)


def _earlier(dump: Dump) -> tuple[Dump, Dump]:
    """Steps of the same shape over page 0, which may always be read: rows as long as can be, and without a history."""
    page = dump.meta.layout.page_tokens
    longest = torch.full_like(dump.context, dump.page_table.shape[1] * page)
    return _over_page_0(dump, longest), _over_page_0(dump, dump.n_query.clone())


def _over_page_0(dump: Dump, context: Tensor) -> Dump:
    shift = torch.repeat_interleave(context - dump.context, dump.n_query.long())
    return replace(
        dump,
        context=context,
        positions=dump.positions + shift,
        page_table=torch.zeros_like(dump.page_table),
        slot_mapping=dump.positions % dump.meta.layout.page_tokens,
        groups=None,
    )
