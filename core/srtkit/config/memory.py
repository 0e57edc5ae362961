"""The memory plan: what a rank's memory holds, from shapes. Knows no torch and allocates nothing.

Weights and pools are exact; the workspace of the largest step is a formula and printed as an estimate.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from srtkit.config.settings import MemorySection
from srtkit.spec.errors import OutOfMemory
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.kv import ITEM_BYTES, Component
from srtkit.spec.models import ModelPlan
from srtkit.spec.platform import PlatformDefaults

GIB = 1 << 30


@dataclass(frozen=True)
class PoolPlan:
    """Pages of a component, the scratch page 0 included; `page_bytes` covers all layers. Pages of a slot component are
    state slots.
    """

    component: Component
    pages: int
    page_bytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.pages * self.page_bytes

    def holds(self, page_size: int) -> str:
        """How much a page size of so many tokens makes of it, for people."""
        if self.component.kind == "slot":
            return f"{self.pages - 1:,} states of {self.page_bytes:,} B"
        return f"{(self.pages - 1) * page_size:,} tokens in pages of {page_size}"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank. `pools` by number of their component; `reason` says what sized them. `host` is what the prefix
    cache takes on the host, and `beside` says that this is not the device's memory.
    """

    total: int
    budget: int
    weights: int
    workspace: int
    tables: int
    pools: tuple[PoolPlan, ...]
    reason: str
    host: int
    beside: bool

    @property
    def kv(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pool in self.pools)

    @property
    def a_page_each(self) -> int:
        """Bytes of one page of every pool."""
        return sum(pool.page_bytes for pool in self.pools)

    def longest(self, page_size: int) -> int:
        """Tokens of a sequence for which the pools have room: a window or a state holds any number."""
        bounds = [(pool.pages - 1) * page_size for pool in self.pools if pool.component.reach == "all"]
        return min(bounds, default=1 << 30)

    def lines(self, page_size: int) -> list[str]:
        """For people: one line a part."""
        in_all = self.weights + self.workspace + self.tables + self.kv + (0 if self.beside else self.host)
        host = f"host tier  {_gib(self.host)}" + (" of the host's memory, beside the device's" if self.beside else "")
        pools = (("KV pages" if one.component.reach == "all" else one.component.name, one) for one in self.pools)
        return [
            f"weights    {_gib(self.weights)}",
            f"workspace  {_gib(self.workspace)} (an estimate: the largest step, and captured ones)",
            f"tables     {_gib(self.tables)}",
            *(f"{name:<10} {_gib(one.nbytes)} = {one.holds(page_size)}" for name, one in pools),
            f"           {self.reason}",
            *([host] if self.host else []),
            f"in all     {_gib(in_all)} of the device's {_gib(self.total)}; memory.fraction allows {_gib(self.budget)}",
        ]


def plan_memory(
    asked: MemorySection,
    facts: DeviceFacts,
    defaults: PlatformDefaults,
    limits: Limits,
    model: ModelPlan,
    page_bytes: Mapping[Component, int],
    captured: int,
    host: int,
) -> MemoryPlan:
    """Size the pools: by `kv_gib`, else by what `fraction` of the memory leaves, at most the platform's cap.

    Never more pages than `limits` can fill; a page takes `page_bytes` in all layers, captured steps take `captured`,
    the prefix cache `host` bytes of the host's memory. Raises `OutOfMemory` with the figures when not even one page
    beside page 0 fits, or all exceeds the memory.
    """
    total = facts.memory_bytes
    workspace = limits.max_tokens * token_bytes(model) + 3 * limits.max_rows * model.vocab_size * 4 + captured
    tables = _tables(limits, sum(one.kind == "paged" for one in page_bytes), facts)
    budget = int(total * (asked.fraction or defaults.memory_fraction))
    kv_bytes, kv_cap = (int(float(gib or 0) * GIB) for gib in (asked.kv_gib, defaults.extra.get("kv_gib_cap")))
    parts = {"weights": model.weight_bytes, "workspace": workspace, "tables": tables}
    if facts.host_memory:
        parts["host tier"] = host
    fixed = sum(parts.values())
    left, reason = budget - fixed, "what memory.fraction leaves"
    if kv_bytes:
        left, reason = kv_bytes, f"memory.kv_gib asks for {_gib(kv_bytes)}"
    elif 0 < kv_cap < left:
        left, reason = kv_cap, f"capped by the platform at {_gib(kv_cap)} (memory.kv_gib lifts it)"
    pools = _share(left, limits, page_bytes)
    kv, least = sum(pool.nbytes for pool in pools), sum(_least(one, limits) * n for one, n in page_bytes.items())
    short = kv > left or any(pool.pages < _least(pool.component, limits) for pool in pools)
    if left - kv >= sum(page_bytes.values()):
        beyond = reason if kv_bytes else f"{_gib(left)} would be free"
        reason = f"all that {limits.max_rows} sequences of {limits.max_context:,} tokens can fill ({beyond})"
    pages = " and ".join(f"{_least(one, limits)} {_kind(one)} pages" for one in page_bytes)
    if kv_bytes and short:
        remedy = f"raise memory.kv_gib, at least to {1.25 * least / GIB:.2g}"
        raise OutOfMemory("memory.kv_gib", f"{reason}, and {pages} take {_gib(least)}", remedy)
    if short or fixed + kv > total:
        option, has = ("lower memory.kv_gib", total) if kv_bytes else ("raise memory.fraction", budget)
        raise OutOfMemory(
            "memory plan",
            f"{', '.join(f'{name} ({_gib(n)})' for name, n in parts.items() if n)} and "
            f"{_gib(max(kv, least))} of KV pages do not fit: {_gib(has)} of {_gib(total)} may be used",
            f"{option}, lower scheduler.chunk_tokens or max_running, or take a smaller model",
        )
    return MemoryPlan(
        total, budget, model.weight_bytes, workspace, tables, pools, reason, host, beside=not facts.host_memory
    )


def _tables(limits: Limits, paged: int, facts: DeviceFacts) -> int:
    """Page tables of that many paged components, and the columns of a step.

    On the device every row's pages, by slot and in the order of a step; on the host their twins, and the scheduler's
    with a byte that says whose a page is.
    """
    entry = 17 if facts.host_memory else 8
    return paged * (limits.max_rows + 1) * limits.max_pages * entry + limits.max_tokens * (16 + 4 * paged)


def _least(component: Component, limits: Limits) -> int:
    """Pages without which nothing runs: page 0 and one more, what is seen of a window, a state and a cached one."""
    held = component.pages_held(limits.max_context, limits.max_tokens, limits.page_size)
    return 1 + {"all": 1, "window": held, "snapshot": 2}[component.reach]


def _share(left: int, limits: Limits, page_bytes: Mapping[Component, int]) -> tuple[PoolPlan, ...]:
    """Pages of each component in `left` bytes.

    Windows get what all sequences hold and as much for the cache; states beside a sequence's own one that it starts
    from, one on its way to the cache and one there. Of all that at most half, where other components need the rest.
    """
    held = {one: one.pages_held(limits.max_context, limits.max_tokens, limits.page_size) for one in page_bytes}
    most = {one: 1 + limits.max_rows * n * {"all": 1, "window": 2, "snapshot": 4}[one.reach] for one, n in held.items()}
    whole = [one for one in page_bytes if one.reach == "all"]
    each = sum(page_bytes[one] for one in whole)
    bounded = sum(most[one] * n for one, n in page_bytes.items() if one not in whole)
    room = min(bounded, max(left // 2, left - sum(most[one] * page_bytes[one] for one in whole)))
    pages = {one: max(_least(one, limits), most[one] * room // bounded) for one in page_bytes if one not in whole}
    rest = left - sum(n * page_bytes[one] for one, n in pages.items())
    pages |= {one: min(most[one], rest // each) for one in whole}
    return tuple(PoolPlan(one, int(pages[one]), n) for one, n in page_bytes.items())


def token_bytes(model: ModelPlan) -> int:
    """What a token takes while a step runs: an estimate."""
    return (8 * model.hidden_size + 3 * model.intermediate_size) * ITEM_BYTES[model.dtype]


def _kind(component: Component) -> str:
    """What its pages are called: "KV" where a sequence keeps all of them."""
    return "KV" if component.reach == "all" else component.name


def _gib(n: int) -> str:
    return f"{n / GIB:.2f} GiB" if abs(n) >= GIB / 10 else f"{n / (1 << 20):.1f} MiB"
