"""From a step that differs to the smallest one that still does, checking each cut by running both backends.

One row, one query, the shortest context (from the front by pages, from the end by tokens), the shortest window, the
fewest heads: in this order, as far as each cut leaves the difference standing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_shadow.compare import Finding, errors, findings
from srtkit_plugin_attention_shadow.dump import Dump, only_rows
from srtkit_plugin_cli_debug import cuts
from srtkit_plugin_cli_debug.player import Player


@dataclass(frozen=True)
class Verdict:
    """Both results of a dump, its findings worst first, and the error of each token's heads [T, q_heads]."""

    dump: Dump
    out: Tensor
    wanted: Tensor
    error: Tensor
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Finding:
        """The worst finding; there must be one."""
        return self.findings[0]

    def as_dump(self) -> Dump:
        """The dump with these results in place of those of the run that wrote it."""
        meta = replace(self.dump.meta, findings=self.findings)
        return replace(self.dump, meta=meta, out=self.out, wanted=self.wanted)


@dataclass
class Judge:
    """Two backends, how the first one's plans are used, and what is too far. `runs` counts comparisons."""

    live: Player
    reference: Player
    limit: float
    reused: bool = False
    runs: int = 0

    def __call__(self, dump: Dump) -> Verdict:
        """Play the dump on both. Raises `Unsupported` where one refuses."""
        self.runs += 1
        out, wanted = self.live.play(dump, reused=self.reused), self.reference.play(dump)
        covered = torch.zeros(len(dump.q), dtype=torch.bool)
        middle = int(dump.n_query[: dump.meta.leading].sum())
        covered[
            slice(middle if dump.meta.covered == "rest" else 0, middle if dump.meta.covered == "leading" else None)
        ] = True
        error = torch.where(covered[:, None], errors(out, wanted), 0.0)
        rows = (dump.n_query.numpy(), dump.slots.numpy(), dump.positions.numpy())
        return Verdict(dump, out, wanted, error, tuple(findings(error, self.limit, *rows)))

    def attempt(self, dump: Dump) -> Verdict | None:
        """The verdict if both take the dump and differ, else None."""
        try:
            verdict = self(dump)
        except Unsupported:
            return None
        return verdict if verdict.findings else None


def reduced(judge: Judge, verdict: Verdict) -> Verdict:
    """The smallest dump found that still differs."""
    verdict = _rows(judge, verdict)
    if verdict.dump.rows > 1:
        return verdict
    while True:
        before = _size(verdict.dump)
        for cut in (_queries, _window, _front, _tail, _kv_heads, _members):
            verdict = cut(judge, verdict)
        if _size(verdict.dump) == before:
            return verdict


def _size(dump: Dump) -> tuple[int, ...]:
    spec = dump.meta.spec
    return (len(dump.q), int(dump.context.max()), spec.window, spec.q_heads, spec.kv_heads)


def _first(judge: Judge, verdict: Verdict, smaller: Iterator[Dump]) -> Verdict:
    """The first of the smaller dumps that differs, else the verdict as it is."""
    return next((found for dump in smaller if (found := judge.attempt(dump))), verdict)


def _rows(judge: Judge, verdict: Verdict) -> Verdict:
    """The row with the worst finding alone, or another one alone; else as few as leaving out halves leads to."""
    suspects = list(dict.fromkeys(one.row for one in verdict.findings))[:4]
    alone = _first(judge, verdict, (only_rows(verdict.dump, [row]) for row in suspects))
    if alone is not verdict:
        return alone
    size = verdict.dump.rows // 2
    while size:
        for first in range(0, verdict.dump.rows, size):
            rows = [row for row in range(verdict.dump.rows) if not first <= row < first + size]
            if rows and (found := judge.attempt(only_rows(verdict.dump, rows))):
                verdict = found
                break
        else:
            size //= 2
    return verdict


def _queries(judge: Judge, verdict: Verdict) -> Verdict:
    dump, at = verdict.dump, verdict.worst.token
    if len(dump.q) == 1 or dump.tree is not None or not dump.meta.spec.causal:
        return verdict
    ranges = [(at, at + 1), (0, at + 1), (at, len(dump.q))]
    return _first(judge, verdict, (cuts.queries(dump, *one) for one in ranges if one != (0, len(dump.q))))


def _window(judge: Judge, verdict: Verdict) -> Verdict:
    while (window := verdict.dump.meta.spec.window // 2) > 0:
        if (found := judge.attempt(cuts.windowed(verdict.dump, window))) is None:
            break
        verdict = found
    return verdict


def _front(judge: Judge, verdict: Verdict) -> Verdict:
    page = verdict.dump.meta.layout.page_tokens
    return _by_halves(judge, verdict, page, cuts.without_front)


def _tail(judge: Judge, verdict: Verdict) -> Verdict:
    return verdict if verdict.dump.tree is not None else _by_halves(judge, verdict, 1, cuts.without_tail)


def _by_halves(judge: Judge, verdict: Verdict, unit: int, cut: Callable[[Dump, int], Dump]) -> Verdict:
    """Cut as many units of tokens as can go, the larger shares first."""

    def spare(dump: Dump) -> int:
        return (int(dump.context[0]) - int(dump.n_query[0])) // unit

    share = spare(verdict.dump)
    while share:
        found = judge.attempt(cut(verdict.dump, share)) if share <= spare(verdict.dump) else None
        if found is None:
            share //= 2
        else:
            verdict = found
    return verdict


def _kv_heads(judge: Judge, verdict: Verdict) -> Verdict:
    """The worst head's KV head alone, or with one other."""
    dump = verdict.dump
    spec = dump.meta.spec
    if spec.kv_heads == 1 or dump.meta.layout.name != "nhd/1":
        return verdict
    ratio = spec.q_heads // spec.kv_heads
    own = verdict.worst.head // ratio
    pairs = [[own], *(sorted((own, other)) for other in range(spec.kv_heads) if other != own)]
    kept = (one for one in pairs if len(one) < spec.kv_heads)
    return _first(judge, verdict, (cuts.heads(dump, one, range(ratio)) for one in kept))


def _members(judge: Judge, verdict: Verdict) -> Verdict:
    """Of each KV head's query heads one alone, or two."""
    dump = verdict.dump
    spec = dump.meta.spec
    ratio = spec.q_heads // spec.kv_heads
    if ratio == 1 or dump.meta.layout.name != "nhd/1":
        return verdict
    own = verdict.worst.head % ratio
    sets = [[own], *(sorted((own, other)) for other in range(ratio) if other != own)]
    kept = (one for one in sets if len(one) < ratio)
    return _first(judge, verdict, (cuts.heads(dump, range(spec.kv_heads), one) for one in kept))
