"""Steps over a poisoned pool, a naive float64 solution of them, and the numeric gates.

Nothing here uses the plugin's own mathematics: `Case.solve` loops over queries in float64 numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

import srtkit_plugin_attention_torch as plugin
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionPlan,
    AttentionSpec,
    Batch,
    GroupView,
    LayerGroup,
    LayerHandle,
    MlaDims,
    TreeMask,
)
from srtkit.spec.facts import DeviceFacts, Limits
from srtkit.spec.layers import DTYPES
from srtkit.spec.platform import Platform

Doubles = npt.NDArray[np.float64]
PLATFORM = cast(
    "Platform",
    SimpleNamespace(
        device=lambda index: torch.device("cpu"), allocate=lambda tag, shape, dtype: torch.zeros(*shape, dtype=dtype)
    ),
)
CANARY = 77.0
GARBAGE = 1e4


@dataclass(frozen=True)
class Row:
    """One row: tokens already stored, tokens of this step, and the row whose first `shared` pages it uses."""

    stored: int
    n_query: int
    like: int = -1
    shared: int = 0


@dataclass
class Case:
    """A step: rows, layout and features. `tree` gives every leading row a random tree of drafts."""

    rows: Sequence[Row]
    dtype: str = "bfloat16"
    kv_dtype: str = ""
    kv_heads: int = 3
    ratio: int = 3
    head_dim: int = 64
    page: int = 16
    window: int = 0
    soft_cap: float = 0.0
    sinks: bool = False
    causal: bool = True
    mla: MlaDims | None = None
    tree: bool = False
    leading: int = 0
    permuted: bool = True
    adjacent: bool = True
    std: float = 1.0
    fast: bool = True
    garbage: float = GARBAGE
    padding: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> AttentionSpec:
        """The layer's spec."""
        head_dim = self.head_dim if self.mla is None else self.mla.rank + self.mla.rope
        return AttentionSpec(
            q_heads=self.kv_heads * self.ratio,
            kv_heads=self.kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if self.mla is None else self.mla.rank,
            scale=head_dim**-0.5,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype or self.dtype,
            window=self.window,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
            causal=self.causal,
            mla=self.mla,
        )


@dataclass
class Result:
    """What a run gave, beside the solution: out and lse of the real rows."""

    out: torch.Tensor
    lse: torch.Tensor
    gold: Doubles
    gold_lse: Doubles
    same: Doubles  # float32 computation with probabilities and result rounded to the dtype
    rows: list[slice]

    def check(self) -> None:
        """The gates: whole result, largest error, each row, log-sum-exp; nothing but finite numbers."""
        assert torch.isfinite(self.out).all()
        out = self.out.double().numpy()
        floor = 1e-6
        assert rel(out, self.gold) <= 1.5 * rel(self.same, self.gold) + floor
        largest = np.abs(self.gold).max()
        assert np.abs(out - self.gold).max() <= 3 * np.abs(self.same - self.gold).max() + floor * largest
        typical = rel(self.same, self.gold)
        for row in self.rows:
            allowed = 4 * max(typical, rel(self.same[row], self.gold[row])) + floor
            assert rel(out[row], self.gold[row]) <= allowed, row
        ceiling = 1e-5 if self.out.dtype is torch.float32 else 1.2e-2
        assert rel(out, self.gold) <= ceiling
        off = np.abs(self.lse.double().numpy() - self.gold_lse).max() / max(1.0, np.abs(self.gold_lse).max())
        assert off <= (1e-5 if self.out.dtype is torch.float32 else 2e-4)  # the kernel's exp for 16-bit types is coarse


def rel(x: Doubles, gold: Doubles) -> float:
    """Relative L2 error."""
    return float(np.linalg.norm(x - gold) / max(np.linalg.norm(gold), 1e-30))


class Run:
    """A case laid out in memory: backend, plan, batch, view, layer, and the tokens of each row."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        self.case = case
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        spec = case.spec
        n_query = [row.n_query for row in case.rows] + [1] * case.padding
        context = [row.stored + row.n_query for row in case.rows] + [1] * case.padding
        self.n_query, self.context = np.array(n_query, np.int32), np.array(context, np.int32)
        self.tokens = int(self.n_query.sum())
        self.real = self.tokens - case.padding
        self.pages = self._page_table()
        self.layout = plugin.kv_layouts(spec, case.page, facts())[0]
        limits = Limits(max(1, len(n_query)), self.tokens, max(context) + case.page, case.page)
        group = LayerGroup("g", spec, (0,))
        options = plugin.Options(fast=case.fast, **case.options)
        self.build = AttentionBuild(group, self.layout, limits, PLATFORM, 0, options)
        self.backend: AttentionBackend = plugin.build(self.build)
        self.plan: AttentionPlan = self.backend.new_plan(limits)
        self._fill_pool()
        self.batch, self.view = self._batch(), self._view()

    def run(self, **how: Any) -> Result:
        """`attend`, set beside the solution."""
        return self.compare(*self.attend(**how))

    def attend(self, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """fill, store, attend: out and lse. Checks that `store` changed the step's slots only."""
        spec, case = self.case.spec, self.case
        before = {name: plane.clone() for name, plane in self.planes.items()}
        self.backend.fill(self.plan, self.batch, self.view)
        k, v = self.new
        self.backend.store(self.plan, self.layer, k, v)
        slots = self.view.slot_mapping.long()
        for name, plane in self.planes.items():
            untouched = torch.ones(plane.shape[0] * case.page, dtype=torch.bool)
            untouched[slots] = False
            untouched = untouched.view(-1, case.page)
            old, new = (x.contiguous().view(torch.uint8).view(*plane.shape[:2], -1) for x in (before[name], plane))
            assert torch.equal(new[untouched], old[untouched])
        out = torch.full((self.tokens, spec.q_heads, spec.v_head_dim), CANARY, dtype=DTYPES[spec.dtype])
        lse = torch.full((self.tokens, spec.q_heads), CANARY)
        self.backend.attend(self.plan, self.layer, self.q, out, lse=lse, **how)
        return out, lse

    def compare(self, out: torch.Tensor, lse: torch.Tensor) -> Result:
        """Set results of the real tokens beside the solution."""
        gold, gold_lse = self.solve(np.float64, rounded=False)
        same, _ = self.solve(np.float32, rounded=True)
        ends = np.cumsum(self.n_query)
        rows = [slice(int(e - n), int(e)) for e, n in zip(ends, self.n_query, strict=True) if n][: len(self.case.rows)]
        return Result(out[: self.real], lse[: self.real], gold, gold_lse, same, rows)

    def solve(self, real: type, rounded: bool) -> tuple[Doubles, Doubles]:
        """Every query by itself, from the rows' own tokens: out [T, heads, dv] and lse [T, heads]."""
        spec = self.case.spec
        q = self.q.float().numpy().astype(real)
        out = np.zeros((self.real, spec.q_heads, spec.v_head_dim))
        lse = np.zeros((self.real, spec.q_heads))
        token = 0
        for row in range(len(self.case.rows)):
            keys, values = self.keys[row].astype(real), self.values[row].astype(real)
            for i in range(self.n_query[row]):
                seen = np.array(self._seen(row, i))
                for head in range(spec.q_heads):
                    k, v = (x[seen, head // self.case.ratio] for x in (keys, values))
                    scores = (k @ q[token, head]) * real(spec.scale)
                    if spec.soft_cap:
                        scores = real(spec.soft_cap) * np.tanh(scores / real(spec.soft_cap))
                    sink = [] if self.layer.sinks is None else [real(self.layer.sinks[head].item())]
                    top = max([*scores.tolist(), *sink])
                    weights = np.exp(scores - real(top))
                    total = weights.sum() + sum(np.exp(real(s) - real(top)) for s in sink)
                    weights = weights / total
                    if rounded:
                        weights = self._round(weights)
                    out[token, head] = self._round(weights @ v) if rounded else weights @ v
                    lse[token, head] = top + np.log(total)
                token += 1
        return out, lse

    def _round(self, x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        rounded = torch.from_numpy(np.ascontiguousarray(x)).to(DTYPES[self.case.dtype]).float()
        return cast("npt.NDArray[np.float32]", rounded.numpy())

    def _seen(self, row: int, i: int) -> list[int]:
        """Which of the row's tokens its i-th query sees, one by one."""
        stored, context, window = self.case.rows[row].stored, int(self.context[row]), self.case.window
        seen = []
        for j in range(context):
            if self.case.tree and row < self.case.leading:
                mine, its = stored + self.depth[row, i], j if j < stored else stored + self.depth[row, j - stored]
                ok = j < stored or bool(self.sees[row, i, j - stored])
            else:
                mine, its = stored + i, j
                ok = not self.case.causal or j <= mine
            if ok and (not window or mine - its < window):
                seen.append(j)
        return seen

    def _page_table(self) -> npt.NDArray[np.int32]:
        """Own pages for each row, apart from those it shares; page 0 for padding and tails."""
        size = self.case.page
        need = [-(-int(c) // size) for c in self.context[: len(self.case.rows)]]
        own = [n - row.shared for n, row in zip(need, self.case.rows, strict=True)]
        ids = np.arange(1, sum(own) + 1)
        self.n_pages = len(ids) + 4  # the rest is never used
        if self.case.permuted:
            ids = self.rng.permutation(self.n_pages - 1)[: len(ids)] + 1
        table = np.zeros((len(self.context), max(need) + 1), np.int32)
        for row, (spec, n) in enumerate(zip(self.case.rows, need, strict=True)):
            table[row, : spec.shared] = table[spec.like, : spec.shared]
            table[row, spec.shared : n], ids = ids[: n - spec.shared], ids[n - spec.shared :]
        return table

    def _fill_pool(self) -> None:
        """NaN everywhere, garbage in page 0 and in the tails of used pages, tokens where they belong."""
        case, spec = self.case, self.case.spec
        dtype, kv_dtype = DTYPES[spec.dtype], DTYPES[spec.kv_dtype]
        names = [plane.name for plane in self.layout.planes]
        self.planes = {p.name: self._pool(p.shape, kv_dtype) for p in self.layout.planes}
        fp8 = kv_dtype.itemsize == 1
        scales = {"k": torch.rand(spec.kv_heads) + 0.5, "v": torch.tensor(1.25)} if fp8 else None
        sinks = torch.randn(spec.q_heads) if case.sinks else None
        self.layer = LayerHandle(0, self.planes, sinks, scales)
        self.q = self._draw((self.tokens, spec.q_heads, spec.head_dim), dtype)
        entries = []  # per plane: new tokens; per row: the tokens as they read back
        rows: list[list[npt.NDArray[np.float32]]] = [[] for _ in case.rows]
        for name, plane in zip(names, self.layout.planes, strict=True):
            scale = None if scales is None else scales["k" if case.mla or name == "k" else "v"]
            new = self._draw((self.tokens, *plane.shape[1:]), dtype)
            entries.append(new)
            token = 0
            for r, row in enumerate(case.rows):
                mine = torch.cat((self._draw((row.stored, *plane.shape[1:]), dtype), new[token : token + row.n_query]))
                token += row.n_query
                raw, read = _encode(mine, kv_dtype, scale)
                common = row.shared * case.page
                if common:
                    read[:common] = torch.from_numpy(rows[row.like][len(rows[r])][:common])
                self._put(self.planes[name], r, raw, common, row.stored)
                rows[r].append(read.numpy())
        self.new = (entries[0], entries[1])
        if case.mla is None:
            self.keys, self.values = [row[0] for row in rows], [row[1] for row in rows]
        else:
            self.keys = [np.concatenate(row, 1)[:, None] for row in rows]
            self.values = [row[0][:, None] for row in rows]

    def _pool(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The second layer of a pool of two; every other page of it unless pages are to be adjacent."""
        step = 1 if self.case.adjacent else 2
        pool = torch.full((2, self.n_pages * step, *shape), torch.nan).to(dtype)[1, ::step]
        pool[0] = torch.tensor(min(self.case.garbage, torch.finfo(dtype).max)).to(dtype)
        return pool

    def _put(self, plane: torch.Tensor, row: int, raw: torch.Tensor, begin: int, end: int) -> None:
        """Tokens [begin, end) of a row into its own pages, after garbage in all of those."""
        size = self.case.page
        used = self.pages[row, begin // size : -(-int(self.context[row]) // size)]
        for page in used.tolist():
            plane[page] = torch.tensor(min(self.case.garbage, torch.finfo(plane.dtype).max)).to(plane.dtype)
        for position in range(begin, end):
            plane[int(self.pages[row, position // size]), position % size] = raw[position]

    def _draw(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return (torch.randn(shape) * self.case.std).to(dtype)

    def _view(self) -> GroupView:
        size, slots = self.case.page, []
        for row, (n, context) in enumerate(zip(self.n_query, self.context, strict=True)):
            for position in range(int(context - n), int(context)):
                slots.append(int(self.pages[row, position // size]) * size + position % size)
        return GroupView(size, torch.from_numpy(self.pages), torch.tensor(slots, dtype=torch.int32), self.pages)

    def _batch(self) -> Batch:
        case, leading = self.case, self.case.leading
        q_len = int(self.n_query[0]) if leading else 0
        positions = np.concatenate(
            [np.arange(c - n, c) for n, c in zip(self.n_query, self.context, strict=True)]
        ).astype(np.int32)
        tree = None
        if case.tree:
            tree = self._tree(leading, q_len)
            for row in range(leading):
                positions[row * q_len : (row + 1) * q_len] = case.rows[row].stored + self.depth[row]
        cu = np.concatenate(([0], np.cumsum(self.n_query))).astype(np.int32)
        return Batch(
            rows=len(self.n_query),
            tokens=self.tokens,
            leading=leading,
            q_len=q_len,
            cu_q=torch.from_numpy(cu),
            context=torch.from_numpy(self.context),
            positions=torch.from_numpy(positions),
            slots=torch.zeros(len(self.n_query), dtype=torch.int32),
            host_q=self.n_query,
            host_context=self.context,
            features=frozenset({"tree_mask"}) if tree else frozenset(),
            tree=tree,
        )

    def _tree(self, rows: int, q_len: int) -> TreeMask:
        """A random parent for every draft; a draft sees its ancestors and itself."""
        self.sees = np.zeros((rows, q_len, q_len), bool)
        self.depth = np.zeros((rows, q_len), np.int32)
        for row in range(rows):
            for i in range(q_len):
                parent = int(self.rng.integers(-1, i)) if i else -1
                if parent >= 0:
                    self.sees[row, i] = self.sees[row, parent]
                    self.depth[row, i] = self.depth[row, parent] + 1
                self.sees[row, i, i] = True
        bits = np.zeros((rows, q_len, -(-q_len // 32)), np.uint32)
        for row, i, j in zip(*np.nonzero(self.sees), strict=True):
            bits[row, i, j // 32] |= np.uint32(1) << np.uint32(j % 32)
        return TreeMask(torch.from_numpy(bits.view(np.int32)))


def _encode(
    values: torch.Tensor, kv_dtype: torch.dtype, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As stored, and as it reads back in float32."""
    if scale is None:
        return values.to(kv_dtype), values.to(kv_dtype).float()
    scale = scale.reshape(-1, 1)
    raw = (values.float() / scale).to(kv_dtype)
    return raw, raw.float() * scale


def facts() -> DeviceFacts:
    """A CPU that knows all dtypes."""
    return DeviceFacts("cpu", "test", "x86_64", dtypes=frozenset({"float32", "bfloat16", "float16"}))


@pytest.fixture
def run() -> Callable[..., Run]:
    """Lay a case out: run(rows, **case)."""

    def make(rows: Sequence[tuple[int, ...]], seed: int = 0, **case: Any) -> Run:
        return Run(Case([Row(*row) for row in rows], **case), seed)

    return make


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Many small operations: a second thread would mostly wait. `test_two_threads` has one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
