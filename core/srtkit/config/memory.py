"""The memory plan: what a rank's memory holds, from shapes. Knows no torch and allocates nothing.

Weights and pools are exact; the workspace of the largest step is a formula and printed as an estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from srtkit.spec.attention import LayerGroup
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.facts import Limits
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


def plan_memory(
    total: int,
    fraction: float,
    kv_bytes: int,
    kv_cap: int,
    limits: Limits,
    model: ModelPlan,
    groups: Sequence[tuple[LayerGroup, KVLayout]],
) -> MemoryPlan:
    """Size the pools: `kv_bytes` (0: what `fraction` of `total` leaves, at most `kv_cap` if that is not 0), and no
    more pages than `limits` can fill.

    Raises `OutOfMemory` with the figures when not even one page fits, or all that is asked for exceeds `total`.
    """
    page_bytes = sum(layout.page_bytes * len(group.layers) for group, layout in groups)
    activations = limits.max_tokens * (8 * model.hidden_size + 3 * model.intermediate_size)
    workspace = activations * ITEM_BYTES[model.dtype] + 3 * limits.max_rows * model.vocab_size * 4
    tables = limits.max_rows * limits.max_pages * 4 * 3 + limits.max_tokens * 16
    budget = int(total * fraction)
    left = budget - model.weight_bytes - workspace - tables
    left = kv_bytes or min(left, kv_cap or left)
    pages = min(left // page_bytes, limits.max_rows * limits.max_pages + 1)
    wanted = model.weight_bytes + workspace + tables + max(pages, 2) * page_bytes
    if pages < 2 or wanted > total:
        raise OutOfMemory(
            "memory plan",
            f"weights ({_gib(model.weight_bytes)}), workspace ({_gib(workspace)}), tables ({_gib(tables)}) and "
            f"{max(pages, 2):,} KV pages of {page_bytes:,} B do not fit: {_gib(budget)} of {_gib(total)} may be used",
            "change memory.fraction or kv_gib, lower scheduler.chunk_tokens or max_running, or take a smaller model",
        )
    return MemoryPlan(total, budget, model.weight_bytes, workspace, tables, page_bytes, int(pages))


def _gib(n: int) -> str:
    return f"{n / GIB:.2f} GiB" if abs(n) >= GIB / 10 else f"{n / (1 << 20):.1f} MiB"
