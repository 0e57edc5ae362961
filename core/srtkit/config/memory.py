"""The memory plan: what a rank's memory holds, from shapes. Knows no torch and allocates nothing.

Weights and pools are exact; the workspace of the largest step is a formula and printed as an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from srtkit.spec.attention import LayerGroup
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.kv import ITEM_BYTES, KVLayout
from srtkit.spec.models import ModelPlan

GIB = 1 << 30


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank. `pages` includes the scratch page 0; `page_bytes` covers all layers."""

    total: int
    budget: int
    weights: int
    workspace: int
    tables: int
    page_bytes: int
    pages: int

    @property
    def kv(self) -> int:
        """Bytes of the KV pools."""
        return self.pages * self.page_bytes

    def lines(self, page_size: int) -> list[str]:
        """For people: one line a part."""
        usable = self.pages - 1
        return [
            f"weights    {_gib(self.weights)}",
            f"workspace  {_gib(self.workspace)} (estimate)",
            f"tables     {_gib(self.tables)}",
            f"KV pages   {_gib(self.kv)} = {usable:,} pages x {page_size} = {usable * page_size:,} tokens, "
            f"{self.page_bytes // page_size:,} B a token",
            f"budget     {_gib(self.budget)} of {_gib(self.total)}",
        ]


@dataclass(frozen=True)
class MemoryWish:
    """What the file asks for. `kv_bytes` 0: what the fraction leaves, at most `kv_cap` (0: no cap)."""

    fraction: float
    kv_bytes: int
    kv_cap: int
    max_rows: int
    max_tokens: int
    max_context: int
    page_size: int


def plan_memory(
    total: int, wish: MemoryWish, model: ModelPlan, groups: Sequence[tuple[LayerGroup, KVLayout]]
) -> MemoryPlan:
    """Size the pools. Raises `OutOfMemory` with the figures when not even one page row fits."""
    page_bytes = sum(layout.page_bytes * len(group.layers) for group, layout in groups)
    item = ITEM_BYTES[model.dtype]
    activations = wish.max_tokens * (8 * model.hidden_size + 3 * model.intermediate_size) * item
    workspace = activations + 3 * wish.max_rows * model.vocab_size * 4
    max_pages = -(-wish.max_context // wish.page_size)
    tables = wish.max_rows * max_pages * 4 * 3 + wish.max_tokens * 16
    budget = int(total * wish.fraction)
    left = budget - model.weight_bytes - workspace - tables
    if wish.kv_bytes:
        left = wish.kv_bytes
    elif wish.kv_cap:
        left = min(left, wish.kv_cap)
    wanted = wish.max_rows * max_pages + 1
    pages = min(left // page_bytes, wanted)
    if pages < 2:
        raise OutOfMemory(
            "memory plan",
            f"{_gib(budget)} of {_gib(total)} hold weights ({_gib(model.weight_bytes)}), workspace "
            f"({_gib(workspace)}) and tables ({_gib(tables)}), but not one KV page of {page_bytes:,} B beside them",
            "raise memory.fraction, lower scheduler.chunk_tokens or scheduler.max_running, or take a smaller model",
        )
    return MemoryPlan(total, budget, model.weight_bytes, workspace, tables, page_bytes, int(pages))


def _gib(n: int) -> str:
    return f"{n / GIB:.2f} GiB" if abs(n) >= GIB / 10 else f"{n / (1 << 20):.1f} MiB"
