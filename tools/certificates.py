"""The text of docs/conformance/README.md: the certificates of this repository's plugins, and a matrix of their clauses.

Knows where a checkout's plugins carry their certificates, and Markdown. Runs no check, and does not ask whether a
certificate still holds: `srt plugins show` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from srtkit_conformance.catalogue import KINDS
from srtkit_conformance.report import Report, read_report
from srtkit_conformance.result import Result
from tools.dists import ROOT, plugins

HEAD = """<!-- Made by `make docs` from the certificates in plugins/. Edit tools/certificates.py, not this. -->

# Certificates

What the [conformance suite](../../conformance/README.md) found of the plugins of this repository; the
[kill matrix](kill-matrix.md) shows what it finds of wrong ones. `make certificates` makes the certificates. Each plugin
carries its own, with a digest of all other files of its distribution, so that `srt plugins show KIND:NAME` can say
whether the installed files are those that were checked: valid, other files, or expired (after a year, or when core
speaks another version of the contract).

Level 3 is through real servers. `platform:cpu` and `platform:fakedev` are certified at it: a platform is served with
every pair of all other plugins that run on it, so theirs are of all of them. The others are certified at level 2.

"""
WORDS = """
`pass`: it does what the clause says. `refused`: it says no to it, was asked anyway, and refused before the step.
`informational`: worth knowing, neither good nor bad. A level is reached when all of its checks, and those below, are
one of the three. `–`: the check was not in that run.
"""


def ours(root: Path = ROOT) -> dict[str, Path]:
    """ "kind:name" of every plugin that the suite certifies → where its certificate lies, in the suite's order."""
    found = {
        (kind, name): dist.folder / dist.package / f"conformance-{kind}-{name}.json"
        for dist in plugins(root)
        for group, names in dist.entry_points.items()
        for kind in [group.split(".")[1]]
        for name in names
        if kind in KINDS
    }
    return {f"{kind}:{name}": found[kind, name] for kind, name in sorted(found, key=lambda one: KINDS.index(one[0]))}


def page(root: Path = ROOT) -> str:
    """The whole page."""
    places = ours(root)
    reports = {part: read_report(path) for part, path in places.items() if path.exists()}
    lines = ["| plugin | level | on | with | checked | files |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [_row(part, report) for part, report in reports.items()]
    if missing := [part for part in places if part not in reports]:
        lines += ["", f"Without a certificate: {', '.join(missing)}."]
    for kind in KINDS:
        own = [report for report in reports.values() if report.plugin.kind == kind]
        lines += _matrix(kind, own) if own else ()
    return HEAD + "\n".join(lines) + "\n" + WORDS


def _row(part: str, report: Report) -> str:
    plugin, device, versions = report.plugin, report.device, report.versions
    cells = [
        part,
        f"{report.level_reached} of {report.level_asked}",
        f"{device.platform}:{device.index}, {device.name} ({device.architecture})",
        f"{plugin.distribution} {plugin.version}, srtkit-core {versions.core}, {plugin.kind}/{versions.core_contract}, "
        f"suite {report.suite.version}, Python {versions.python}, torch {versions.torch or 'absent'}",
        report.started[:10],
        f"`{plugin.digest[:16]}`",
    ]
    return f"| {' | '.join(_cell(one) for one in cells)} |"


def _matrix(kind: str, reports: Sequence[Report]) -> Iterator[str]:
    """A row a clause, a column a plugin."""
    checks: dict[str, Result] = {}
    for report in reports:
        checks = {one.id: one for one in report.checks} | checks
    yield from ("", f"## {kind}", "")
    yield f"| check | level | clause | {' | '.join(report.plugin.name for report in reports)} |"
    yield "| --- | --- | --- |" + " --- |" * len(reports)
    verdicts = [{one.id: one.verdict for one in report.checks} for report in reports]
    for one in checks.values():
        found = " | ".join(each.get(one.id, "–") for each in verdicts)
        yield f"| `{one.id}` | {one.level} | {_cell(one.clause)} | {found} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
