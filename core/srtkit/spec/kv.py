"""KV layouts and components: how pages look in memory and which spaces of page ids exist. No torch.

A pool page holds `page_tokens` tokens of every layer of a component. A layout says which planes stand
under a page id; core allocates the planes layer-major and hands each layer its view.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from srtkit.spec.errors import Unsupported

# Bytes of an element, by torch's name of its dtype.
ITEM_BYTES: dict[str, int] = (
    {"float64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
    | dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "uint8", "int8"), 1)
)  # fmt: skip


@dataclass(frozen=True)
class Plane:
    """One tensor under a page id. `shape` is that of a single page, e.g. [page_tokens, kv_heads, head_dim]."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class KVLayout:
    """What stands under a page id of one layer.

    `name` is name and version ("nhd/1", "vec/1", "latent/1"): two parts agree only if it is equal.
    `kernel_pages` are the page sizes a kernel may see inside one pool page without moving data.
    `over_read` is how many index entries past a row's end a kernel may read (0 … 256).
    `any_page_stride` says that pages of one layer need not be adjacent; core keeps them so, and layouts agree without.
    """

    name: str
    page_tokens: int
    planes: tuple[Plane, ...]
    kernel_pages: tuple[int, ...]
    any_page_stride: bool = False
    over_read: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer, all planes."""
        return sum(plane.page_bytes for plane in self.planes)


@dataclass(frozen=True)
class Component:
    """One space of page ids: its own page table and life-cycle.

    `reach`: "all" (every earlier token is needed), "window" (only the last `window` tokens, a token itself included),
    "snapshot" (only a state at a boundary; of kind "slot"). `lookahead` n makes it valid n tokens less far.
    """

    name: str
    kind: Literal["paged", "slot"] = "paged"
    reach: Literal["all", "window", "snapshot"] = "all"
    window: int = 0
    lookahead: int = 0

    def first_page(self, length: int, page_size: int) -> int:
        """Index of the first page that the tokens after `length` can still see; pages before it are let go."""
        return max(0, length - self.window + 1) // page_size if self.reach == "window" else 0

    def pages_held(self, context: int, chunk: int, page_size: int) -> int:
        """The most pages that a sequence of `context` tokens holds at once, of which a step computes `chunk`."""
        whole = -(-context // page_size) if self.kind == "paged" else 1
        seen = 1 - -chunk // page_size - (1 - self.window) // page_size
        return min(whole, seen) if self.reach == "window" else whole


FULL = Component("full")
# Where the states of all recurrent layers stand: a slot a sequence, and one a snapshot.
STATE = Component("state", kind="slot", reach="snapshot")


def nhd_layout(page_tokens: int, kv_heads: int, head_dim: int, v_head_dim: int, dtype: str) -> KVLayout:
    """The common linear layout "nhd/1": planes k and v, [page_tokens, kv_heads, head size]."""
    sizes = (("k", head_dim), ("v", v_head_dim))
    planes = tuple(Plane(name, (page_tokens, kv_heads, size), dtype) for name, size in sizes)
    divisors = tuple(size for size in range(page_tokens, 0, -1) if page_tokens % size == 0)
    return KVLayout("nhd/1", page_tokens, planes, divisors, any_page_stride=True)


def negotiate(offers: Sequence[tuple[str, Sequence[KVLayout]]]) -> KVLayout:
    """The first layout of the first party (the decode backend) that every other party offers too.

    `offers` are (part name, ordered list). Raises `Unsupported` printing all lists when none is common.
    """
    # Core keeps pages adjacent, so it does not matter here who could do without.
    found = [[replace(one, any_page_stride=False) for one in given] for _, given in offers]
    for layout in found[0]:
        if all(layout in other for other in found):
            return layout
    lists = "; ".join(f"{name} offers [{', '.join(one.name for one in given)}]" for name, given in offers)
    raise Unsupported(
        offers[0][0],
        f"no KV layout suits all that touch these pages: {lists}",
        "choose backends that share a layout, or another memory.page_size or memory.kv_dtype",
    )
