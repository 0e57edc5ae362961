"""The tour of a plugin: a server for each combination, visited once a run for all checks that judge it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from srtkit.spec.errors import SrtError, Unsupported
from srtkit_conformance.check import Failed, Figures, Outcome, Refused
from srtkit_conformance.kits.server import recordable
from srtkit_conformance.kits.server.combinations import Stage, begun, staged
from srtkit_conformance.kits.server.model import REFERENCE, new
from srtkit_conformance.kits.server.pairwise import Row
from srtkit_conformance.kits.server.process import ServerProcess, start
from srtkit_conformance.kits.server.stand_in import NAME, install
from srtkit_conformance.kits.server.visit import Visit, visit
from srtkit_conformance.target import Target

KEPT = "server"
"""Where a target's `extra` keeps the tour."""
CHUNK = 256
"""Prompt tokens of a step that a graph runner captures, of one under test or on a platform under test, where the row
leaves them to core: each shape of a step holds memory, which a platform of tests has little of.
"""
PATIENCE = 4.0
"""Seconds for which a slow device is asked new prompts. A mutant is asked all: it may be found by the last."""
AT_ONCE = 2
"""Servers side by side: each is one process that computes and one that talks."""


@dataclass(frozen=True)
class Tour:
    """What was found in each row. `refusal`: core refuses the plugin, by its declarations, before anything runs.

    `error`: nothing could be served for another reason. `left_out` are others, "kind:name", that cannot serve here,
    as only their `build` can tell.
    """

    rows: tuple[Row, ...] = ()
    visits: tuple[Visit, ...] = ()
    refusal: str = ""
    error: str = ""
    left_out: frozenset[str] = frozenset()

    def judge(self, part: str) -> Outcome:
        """One part of all visits. Raises the `Failed` of the first bad one, with its combination."""
        if self.refusal:
            return Refused(self.refusal)
        if self.error:
            without = f" (left out: {', '.join(sorted(self.left_out))})" if self.left_out else ""
            what = "not even the platform's choice of the other plugins is served with it"
            raise Failed(f"{what}: {self.error}{without}")
        found = [(row, one.found[part]) for row, one in zip(self.rows, self.visits, strict=True)]
        bad = [(row, one) for row, one in found if isinstance(one, Failed)]
        if bad:
            row, failed = bad[0]
            also = f"; {len(bad)} of {len(found)} combinations fail" if len(found) > 1 else ""
            message = f"{failed.message}\nwith {_words(row)}{also}"
            raise Failed(message, observed=failed.observed, limit=failed.limit)
        figures = {"servers": len(found), **_sums([one for _, one in found if not isinstance(one, Failed)])}
        return figures | ({"left_out": ", ".join(sorted(self.left_out))} if self.left_out else {})


def tour(target: Target) -> Tour:
    """That of a target, made when it is asked for first."""
    if KEPT not in target.extra:
        target.extra[KEPT] = _made(target)
    made: Tour = target.extra[KEPT]
    return made


def _made(target: Target) -> Tour:
    stage = staged(target, new(target.folder / "tour"))
    guide = _Guide(target, stage)
    rows: list[Row] = []
    visits: list[Visit] = []
    left_out: frozenset[str] = frozenset()
    while True:
        stage, error = begun(stage.without(left_out))
        if error is not None:
            refused = declared(target, error)
            return Tour(refusal=str(error)) if refused else Tour(error=str(error), left_out=left_out)
        more = stage.rows(target.servers, rows)
        found = [(row, one) for row, one in zip(more, guide.visit_all(more), strict=True) if one is not None]
        absent = {one.refused_by for _, one in found} - {"", target.part}
        kept = [(row, one) for row, one in found if one.refused_by not in absent]
        rows += [row for row, _ in kept]
        visits += [one for _, one in kept]
        left_out |= absent
        if not absent:
            served = [row | ({"attention.use": recordable.NAME} if recorded(target, row) else {}) for row in rows]
            return Tour(tuple(served), tuple(visits), left_out=left_out)


@dataclass
class _Guide:
    """Starts servers and visits them, a few at once."""

    target: Target
    stage: Stage
    _started: int = 0

    def visit_all(self, rows: Sequence[Row]) -> list[Visit | None]:
        """Visit a server of each row, until another plugin refuses: without it fewer rows hold all pairs of the rest.

        None for those that were not visited any more.
        """
        for row in rows:
            self.stage.model(row).expected  # noqa: B018 - computed now, before servers share the cores
        self._started += len(rows)
        folders = [new(self.target.folder / f"s{self._started - number}") for number in range(len(rows))]
        refused = threading.Event()

        def one(row: Row, folder: Path) -> Visit | None:
            if refused.is_set():
                return None
            found = self._visit(row, folder)
            if found.refused_by not in ("", self.target.part):
                refused.set()
            return found

        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(one, rows, folders))

    def _visit(self, row: Row, folder: Path) -> Visit:
        record = recorded(self.target, row)
        server = started(self.target, self.stage, row, folder, record=record)
        patience = math.inf if self.target.mutant else PATIENCE
        return visit(server, self.stage.model(row), patience, recorded=record)


def started(target: Target, stage: Stage, row: Row, folder: Path, *, record: bool = False) -> ServerProcess:
    """A server of a row, just started; `record`: with the suite's attention that can be recorded."""
    sets, site = stage.sets(row), new(folder / "site")
    captures = row["graph_runner.use"] != REFERENCE["graph_runner.use"]
    if target.kind in ("graph_runner", "platform") and captures and not row["scheduler.chunk_tokens"]:
        sets.append(f"scheduler.chunk_tokens={CHUNK}")
    if target.origin:
        install(target, site)
        sets.append(f"{target.kind}.use={NAME}")  # the last one counts
    if record:
        recordable.install(site)
        sets += [f"attention.use={recordable.NAME}", f"model.max_context={recordable.CONTEXT}"]
    settings = folder / "served.toml"
    settings.write_text(f'[model]\nsource = "{stage.model(row).source}"\nname = "tiny"\n')
    return start(settings, sets, folder, site)


def recorded(target: Target, row: Row) -> bool:
    """Whether this row has decode steps recorded for certain: a graph runner that can, over an attention that can."""
    if target.kind != "graph_runner" or row["attention.use"] != recordable.ORIGIN:
        return False
    return "one_token" in target.descriptor.capabilities(target.facts).levels


def declared(target: Target, error: SrtError) -> bool:
    """Its own refusal is one that it has declared; any other is no answer to what was asked."""
    return isinstance(error, Unsupported) and error.part == target.part


def _words(row: Row) -> str:
    return " ".join(f"{setting}={value}" for setting, value in row.items() if value)


def _sums(figures: Sequence[Figures]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in figures:
        for name, value in one.items():
            total[name] = total.get(name, 0) + int(value)
    return total
