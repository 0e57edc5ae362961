"""What changed between two reports: level, verdicts, declarations, circumstances."""

from __future__ import annotations

from srtkit_conformance.report import Report
from srtkit_conformance.result import GOOD


def differences(before: Report, after: Report) -> tuple[list[str], bool]:
    """A line each, and whether `after` is worse: a lower level, or a check that was good and is not."""
    lines = [
        f"{what}: {old} → {new}"
        for what, old, new in (
            ("plugin", f"{before.plugin.kind}:{before.plugin.name}", f"{after.plugin.kind}:{after.plugin.name}"),
            ("version", before.plugin.version, after.plugin.version),
            ("files", before.plugin.digest[:12], after.plugin.digest[:12]),
            ("suite", before.suite.version, after.suite.version),
            ("core", before.versions.core, after.versions.core),
            ("torch", before.versions.torch, after.versions.torch),
            ("device", before.device.name, after.device.name),
            ("level", before.level_reached, after.level_reached),
        )
        if old != new
    ]
    lines += _declared(before.plugin.declared, after.plugin.declared)
    olds = {one.id: one.verdict for one in before.checks}
    news = {one.id: one.verdict for one in after.checks}
    changed = [id_ for id_ in dict.fromkeys((*olds, *news)) if olds.get(id_) != news.get(id_)]
    lines += [f"{id_}: {olds.get(id_, 'absent')} → {news.get(id_, 'absent')}" for id_ in changed]
    lower = (after.level_reached or 0) < (before.level_reached or 0)
    broken = any(olds.get(id_) in GOOD and news.get(id_, "pass") not in GOOD for id_ in changed)
    return lines, lower or broken


def _declared(before: object, after: object) -> list[str]:
    """Changed declarations, a line each."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"declared: {before} → {after}"]
    keys = [key for key in dict.fromkeys((*before, *after)) if before.get(key) != after.get(key)]
    return [f"declared {key}: {before.get(key)} → {after.get(key)}" for key in keys]
