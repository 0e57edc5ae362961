"""What the rows of a step hold: tokens drawn at random, and what they read back as. Knows no pages, no backend."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from srtkit.spec.attention import AttentionSpec
from srtkit.spec.layers import DTYPES
from srtkit_conformance.kits.attention.case import Case
from srtkit_conformance.kits.attention.gold import Tree, attend_row, visible
from srtkit_conformance.kits.numeric.gates import Truth
from srtkit_conformance.kits.threads import one_thread

KEY_SCALES = (0.5, 2.0, 1.0, 4.0)
VALUE_SCALE = 0.5
"""Powers of two: dividing by them is exact, so every right encoder stores the same fp8 value."""


class Content:
    """Tokens of a case's rows, on the CPU.

    `q` [T, q_heads, head_dim] and `new` (as given to `store`) hold this step's tokens, padding last;
    `history` those stored before, per row, likewise. `keys` and `values` [context, kv_heads, size] are
    what each row's entries read back as, float32. `sinks` float32 [q_heads], `scales` of an fp8 layer.
    Whoever hands a tensor of it to a plugin hands out a copy.
    """

    @one_thread()
    def __init__(self, case: Case, rng: np.random.Generator, scales: dict[str, Tensor] | None = None) -> None:
        self.case = case
        self.spec = spec = case.spec
        self.rng = rng
        tokens = case.tokens + sum(case.padding_queries)
        first, second = entry_shapes(spec)
        drawn = (
            self._draw((tokens, spec.q_heads, spec.head_dim)),
            self._draw((tokens, *first)),
            self._draw((tokens, *second)),
        )
        self.q, self.new = drawn[0], drawn[1:]
        self.sinks = None
        if spec.sinks:
            self.sinks = torch.from_numpy(rng.standard_normal(spec.q_heads, np.float32)) * case.std + case.std
        self.scales = scales or (exact_scales(spec) if "fp8_kv" in spec.features else None)
        self.history: list[tuple[Tensor, Tensor]] = []
        for row in case.rows:
            own = (self._draw((row.stored, *first)), self._draw((row.stored, *second)))
            for mine, theirs in zip(own, self.history[row.like] if row.shared else own, strict=True):
                mine[: row.shared * case.page] = theirs[: row.shared * case.page]
            self.history.append(own)
        self.trees = [Tree.random(rng, row.n_query) for row in case.rows[: case.leading]] if case.tree else []
        self.keys: list[Tensor]
        self.values: list[Tensor]
        self._solved: dict[tuple[int, int], Truth] = {}
        self._read_back()

    def tokens_of(self, number: int) -> tuple[Tensor, Tensor]:
        """All tokens of a row as given to `store`."""
        begin = sum(row.n_query for row in self.case.rows[:number])
        end = begin + self.case.rows[number].n_query
        first, second = (
            torch.cat((old, new[begin:end])) for old, new in zip(self.history[number], self.new, strict=True)
        )
        return first, second

    def take(self, q: Tensor, tokens: Sequence[tuple[Tensor, Tensor]]) -> Content:
        """Take over `q` of this step's tokens, and of each row both entries of (at least) its whole context."""
        rows = self.case.rows
        assert len(q) == self.case.tokens and len(tokens) == len(rows)
        self.q = q
        self.history = [(k[: row.stored], v[: row.stored]) for row, (k, v) in zip(rows, tokens, strict=True)]
        fresh = [
            (k[row.stored : row.context], v[row.stored : row.context]) for row, (k, v) in zip(rows, tokens, strict=True)
        ]
        self.new = (torch.cat([k for k, _ in fresh]), torch.cat([v for _, v in fresh]))
        self._read_back()
        return self

    def move(self, row: int, source: list[int], target_row: int, target: list[int]) -> None:
        """Entries of one row take the place of some of another's, as `move_slots` does."""
        for tokens in (self.keys, self.values):
            tokens[target_row] = tokens[target_row].clone()
            tokens[target_row][target] = tokens[row][source]
        self._solved = {}

    def _read_back(self) -> None:
        """Fill `keys` and `values` with what an exact store keeps of each row's tokens."""
        self.keys, self.values, self._solved = [], [], {}
        begin = 0
        for row, old in zip(self.case.rows, self.history, strict=True):
            fresh = [x[begin : begin + row.n_query] for x in self.new]
            begin += row.n_query
            first, second = (
                stored(torch.cat(pair), self.spec, None if self.scales is None else self.scales[name])
                for name, pair in zip(("k", "v"), zip(old, fresh, strict=True), strict=True)
            )
            if self.spec.mla is not None:  # latent and rope part: one key of both, the latent is the value
                first, second = torch.cat((first, second), -1)[:, None], first[:, None]
            self.keys.append(first)
            self.values.append(second)

    def truth(self, begin: int = 0, end: int | None = None) -> Truth:
        """What the rows [begin, end) must give."""
        rows = begin, len(self.case.rows) if end is None else end
        if rows not in self._solved:
            self._solved[rows] = self._solve(*rows)
        return self._solved[rows]

    @one_thread()
    def _solve(self, begin: int, end: int) -> Truth:
        dtype = DTYPES[self.spec.dtype]
        gold, same, rows = [], [], []
        token = sum(row.n_query for row in self.case.rows[:begin])
        first = token
        for number in range(begin, end):
            row = self.case.rows[number]
            if not row.n_query:
                continue
            tree = self.trees[number] if number < len(self.trees) else None
            see = visible(self.spec, row.stored, row.n_query, tree)
            tensors = self.q[token : token + row.n_query], self.keys[number], self.values[number]
            gold.append(attend_row(self.spec, tensors, see, self.sinks))
            same.append(attend_row(self.spec, tensors, see, self.sinks, rounded=dtype))
            rows.append(slice(token - first, token - first + row.n_query))
            token += row.n_query
        out, lse, same_out, same_lse = (torch.cat(x) for half in (gold, same) for x in zip(*half, strict=True))
        return Truth(out, lse, same_out, same_lse, rows)

    def positions(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Of each query token, padding included; in a tree by depth."""
        found = []
        for number, row in enumerate(self.case.rows):
            if number < len(self.trees):
                found.append(row.stored + self.trees[number].depth.numpy())
            else:
                found.append(np.arange(row.stored, row.context, dtype=np.int32))
        return np.concatenate([*found, np.zeros(sum(self.case.padding_queries), np.int32)]).astype(np.int32)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        values = torch.from_numpy(self.rng.standard_normal(shape, np.float32)) * self.case.std
        return values.to(DTYPES[self.spec.dtype])


@lru_cache(maxsize=512)
def drawn(case: Case, seed: int, salt: str = "") -> Content:
    """The content of a case, the same each time and not to be changed: a self-test asks a hundred plugins for it."""
    return Content(case, np.random.default_rng([seed, zlib.crc32(f"{salt}{case}".encode())]))


def entry_shapes(spec: AttentionSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a token's two entries: K and V, or latent and rope part."""
    if spec.mla is not None:
        return (spec.mla.rank,), (spec.mla.rope,)
    return (spec.kv_heads, spec.head_dim), (spec.kv_heads, spec.v_head_dim)


def exact_scales(spec: AttentionSpec) -> dict[str, Tensor]:
    """Per head for K, one for V (for MLA one for both parts), all powers of two; 1 for q."""
    one = torch.tensor(VALUE_SCALE)
    per_head = torch.tensor([KEY_SCALES[head % len(KEY_SCALES)] for head in range(spec.kv_heads)])
    return {"q": torch.tensor(1.0), "k": one if spec.mla is not None else per_head, "v": one}


def stored(values: Tensor, spec: AttentionSpec, scale: Tensor | None) -> Tensor:
    """What entries [n, *entry] read back as, float32: rounded to the KV dtype; fp8 is value / scale, saturated."""
    dtype = DTYPES[spec.kv_dtype]
    if scale is None:
        return values.to(dtype).float()
    scale = scale.reshape(-1, *(1,) * (values.dim() - 2))
    largest = torch.finfo(dtype).max
    return (values.float() / scale).clamp(-largest, largest).to(dtype).float() * scale
