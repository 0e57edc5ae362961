"""What the commands print."""

from __future__ import annotations

import importlib.metadata
import textwrap
from collections.abc import Iterator, Sequence

from srtkit_conformance.check import Check
from srtkit_conformance.digest import distribution_digest
from srtkit_conformance.matrix import matrix_text, uncovered
from srtkit_conformance.report import SUITE, Report
from srtkit_conformance.result import VERDICTS, Result
from srtkit_conformance.selftest import Proof
from srtkit_conformance.target import Target

INDENT = " " * 15


def heading(target: Target) -> str:
    """What is checked, where."""
    where = f"{target.facts.platform}:{target.device_index} ({target.facts.name})"
    return f"{target.part}, {target.distribution} {target.version}, on {where}, seed {target.seed}"


def line(result: Result) -> str:
    """One check; a failure with all that helps."""
    figures = "  ".join(f"{name} {_figure(value)}" for name, value in result.figures.items())
    text = f"{result.verdict:14} {result.id:44} {result.seconds:6.2f} s  {figures}".rstrip()
    if result.verdict in ("pass", "not-run"):
        return text
    return "\n".join([text, *(textwrap.indent(one, INDENT) for one in _details(result))])


def summary(report: Report) -> str:
    """Counts and level."""
    counts = report.counts()
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if verdict in counts)
    lines = [f"{listed} in {report.seconds:.1f} s"]
    lines += [f"the waiver of {one.id} is not needed: remove it" for one in report.waivers if one.state == "not-needed"]
    if report.level_reached is not None:
        reached = f"level {report.level_reached}" if report.level_reached >= 0 else "no level"
        lines.append(f"{reached} reached, level {report.level_asked} asked")
    return "\n".join(lines)


def explanation(check: Check) -> str:
    """All that is known of a check."""
    how = f"in a child process{' of its own' if check.isolated else ''}, at most {check.seconds:g} s"
    causes = textwrap.fill(" ".join(check.explain.split()), 100)
    parts = {"clause": check.clause, "when it fails": causes}
    told = "\n\n".join(f"{title}\n{textwrap.indent(text, '  ')}" for title, text in parts.items())
    return f"{check.id} (level {check.level}, {how})\n\n{told}"


def changed_since(report: Report) -> Iterator[str]:
    """What is not as it was when `report` was written."""
    if (version := importlib.metadata.version(SUITE)) != report.suite.version:
        yield f"the report was written by {SUITE} {report.suite.version}, this is {version}"
    if distribution_digest(report.plugin.distribution) != report.plugin.digest:
        yield f"{report.plugin.distribution} has other files than it had"


def proved(proofs: Sequence[Proof], *, quick: bool) -> str:
    """The kill matrices, which a quick self-test has none of; then faults, and the self-test in numbers."""
    rows = [row for proof in proofs for row in proof.rows]
    legal = sum(row.mutant.legal for row in rows)
    faults = [fault for proof in proofs for fault in proof.faults]
    lines = [sentence for proof in proofs for sentence in uncovered(proof)]
    if not quick:
        lines = [text for proof in proofs for text in ("", matrix_text(proof))] + [""]
    lines += [f"fault: {fault}" for fault in faults]
    if all(proof.whole for proof in proofs):
        unnamed = sum(len(proof.uncovered) for proof in proofs)
        lines.append(f"{unnamed} of {sum(len(proof.checks) for proof in proofs)} checks are named by no mutant")
    return "\n".join([*lines, f"{len(rows) - legal} mutants, {legal} legal variants, {len(faults)} faults"])


def _details(result: Result) -> Iterator[str]:
    if result.message:
        yield result.message
    if result.observed or result.limit:
        yield f"observed {result.observed or '–'}, limit {result.limit or '–'}"
    if result.waiver:
        yield f"waived: {result.waiver}"
    if not result.good:
        yield f"clause: {result.clause}"
        yield f"again:  {result.replay}"


def _figure(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
