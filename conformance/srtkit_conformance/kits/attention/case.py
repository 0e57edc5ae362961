"""A step as data: rows, shapes, features, and how memory is laid out. Also pairwise matrices of them. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from srtkit.spec.attention import AttentionSpec, MlaDims

LARGEST = float("inf")
"""As `Case.garbage`: the largest finite value of each plane's dtype."""


@dataclass(frozen=True)
class Row:
    """One row: tokens stored before, tokens of this step, and the earlier row whose first `shared` pages it uses."""

    stored: int
    n_query: int
    like: int = -1
    shared: int = 0

    @property
    def context(self) -> int:
        """Tokens stored when the step has stored its own."""
        return self.stored + self.n_query


def rows_of(*rows: tuple[int, ...]) -> tuple[Row, ...]:
    """Rows from (stored, n_query[, like, shared])."""
    return tuple(Row(*row) for row in rows)


@dataclass(frozen=True)
class Case:
    """A step of one layer group.

    The first `leading` rows have equal n_query; with `tree` each of them holds a random tree of drafts.
    `padding` rows follow as core makes them: of one token each, or, for a mixed step that is recorded, of none but the
    last, which has `over`. `scale` 0 is head_dim ** -0.5. `std` is that of q, k and v.
    `garbage` is the size of what stands in memory that a kernel may read and not use. `adjacent` no:
    every other page of the pool belongs to another layer. `fused`: q, k and v are slices of one tensor.
    `first_page`: lowest page id in use; above 0 the pool is too large to be filled with NaN.
    """

    rows: tuple[Row, ...]
    dtype: str
    kv_dtype: str = ""
    kv_heads: int = 2
    ratio: int = 3
    head_dim: int = 64
    page: int = 16
    scale: float = 0.0
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    causal: bool = True
    mla: MlaDims | None = None
    tree: bool = False
    leading: int = 0
    padding: int = 0
    over: int = -1
    std: float = 1.0
    garbage: float = 1e4
    permuted: bool = True
    adjacent: bool = True
    fused: bool = False
    first_page: int = 0

    @property
    def spec(self) -> AttentionSpec:
        """The layers' spec; MLA in absorbed form, one KV head of size rank + rope."""
        mla = self.mla
        head_dim = self.head_dim if mla is None else mla.rank + mla.rope
        kv_heads = self.kv_heads if mla is None else 1
        return AttentionSpec(
            q_heads=kv_heads * self.ratio,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if mla is None else mla.rank,
            scale=self.scale or head_dim**-0.5,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype or self.dtype,
            window=self.window,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            causal=self.causal,
            mla=mla,
        )

    @property
    def padding_queries(self) -> list[int]:
        """Query tokens of each padding row."""
        return [1] * self.padding if self.over < 0 else [0] * (self.padding - 1) + [self.over]

    @property
    def tokens(self) -> int:
        """Query tokens without padding."""
        return sum(row.n_query for row in self.rows)

    def __str__(self) -> str:
        """What differs from a plain step, for messages."""
        rows = ", ".join(f"{row.stored}+{row.n_query}" for row in self.rows)
        spec = self.spec
        shape = f"{spec.kv_heads}x{self.ratio} heads of {spec.head_dim}, pages of {self.page}"
        defaults = {one.name: one.default for one in fields(self)}
        told = {"rows", "dtype", "kv_heads", "ratio", "head_dim", "page"}
        extra = [
            f"{name}={value}" for name, value in vars(self).items() if name not in told and value != defaults[name]
        ]
        return f"{self.dtype}, {shape}, rows stored+new [{rows}]" + "".join(f", {text}" for text in extra)
