"""The memory plan: what a rank's memory holds, from shapes. Knows no torch and allocates nothing.

Weights and pools are exact; the workspace of the largest step is a formula and printed as an estimate.
"""

from dataclasses import dataclass

from srtkit.config.settings import MemorySection
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.facts import Limits
from srtkit.spec.kv import ITEM_BYTES
from srtkit.spec.models import ModelPlan
from srtkit.spec.platform import PlatformDefaults

GIB = 1 << 30


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank. `pages` includes the scratch page 0; `page_bytes` covers all layers; `reason` says what sized
    the KV pools.
    """

    total: int
    budget: int
    weights: int
    workspace: int
    tables: int
    page_bytes: int
    pages: int
    reason: str

    @property
    def kv(self) -> int:
        """Bytes of the KV pools."""
        return self.pages * self.page_bytes

    def lines(self, page_size: int) -> list[str]:
        """For people: one line a part."""
        usable, in_all = self.pages - 1, self.weights + self.workspace + self.tables + self.kv
        return [
            f"weights    {_gib(self.weights)}",
            f"workspace  {_gib(self.workspace)} (an estimate: the largest step, and captured ones)",
            f"tables     {_gib(self.tables)}",
            f"KV pages   {_gib(self.kv)} = {usable:,} pages x {page_size} = {usable * page_size:,} tokens, "
            f"{self.page_bytes // page_size:,} B a token",
            f"           {self.reason}",
            f"in all     {_gib(in_all)} of the device's {_gib(self.total)}; memory.fraction allows {_gib(self.budget)}",
        ]


def plan_memory(
    asked: MemorySection,
    total: int,
    defaults: PlatformDefaults,
    limits: Limits,
    model: ModelPlan,
    page_bytes: int,
    captured: int,
) -> MemoryPlan:
    """Size the pools: by `kv_gib`, else by what `fraction` of `total` bytes leaves, at most the platform's cap.

    Never more pages than `limits` can fill; a page takes `page_bytes` in all layers, captured steps take `captured`.
    Raises `OutOfMemory` with the figures when not even one page beside page 0 fits, or all exceeds the memory.
    """
    activations = limits.max_tokens * (8 * model.hidden_size + 3 * model.intermediate_size)
    workspace = activations * ITEM_BYTES[model.dtype] + 3 * limits.max_rows * model.vocab_size * 4 + captured
    tables = limits.max_rows * limits.max_pages * 4 * 3 + limits.max_tokens * 16
    budget = int(total * (asked.fraction or defaults.memory_fraction))
    kv_bytes, kv_cap = (int(float(gib or 0) * GIB) for gib in (asked.kv_gib, defaults.extra.get("kv_gib_cap")))
    fixed = model.weight_bytes + workspace + tables
    left, reason = budget - fixed, "what memory.fraction leaves"
    if kv_bytes:
        left, reason = kv_bytes, f"memory.kv_gib asks for {_gib(kv_bytes)}"
    elif 0 < kv_cap < left:
        left, reason = kv_cap, f"capped by the platform at {_gib(kv_cap)} (memory.kv_gib lifts it)"
    most = limits.max_rows * limits.max_pages + 1
    pages = min(left // page_bytes, most)
    if left // page_bytes > most:
        beyond = reason if kv_bytes else f"{_gib(left)} would be free"
        reason = f"all that {limits.max_rows} sequences of {limits.max_context:,} tokens can fill ({beyond})"
    if kv_bytes and pages < 2:
        remedy = f"raise memory.kv_gib, at least to {2.5 * page_bytes / GIB:.2g}"
        raise OutOfMemory("memory.kv_gib", f"{reason}, and 2 KV pages take {_gib(2 * page_bytes)}", remedy)
    if pages < 2 or fixed + pages * page_bytes > total:
        option, has = ("lower memory.kv_gib", total) if kv_bytes else ("raise memory.fraction", budget)
        raise OutOfMemory(
            "memory plan",
            f"weights ({_gib(model.weight_bytes)}), workspace ({_gib(workspace)}), tables ({_gib(tables)}) and "
            f"{max(pages, 2):,} KV pages of {page_bytes:,} B do not fit: {_gib(has)} of {_gib(total)} may be used",
            f"{option}, lower scheduler.chunk_tokens or max_running, or take a smaller model",
        )
    return MemoryPlan(total, budget, model.weight_bytes, workspace, tables, page_bytes, int(pages), reason)


def _gib(n: int) -> str:
    return f"{n / GIB:.2f} GiB" if abs(n) >= GIB / 10 else f"{n / (1 << 20):.1f} MiB"
