"""A certificate: the report that a distribution carries about one of its plugins, and whether it still holds.

Knows reports, digests and contract versions; runs no check.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from srtkit.plugins.registry import Offer, discover
from srtkit.spec.errors import ConfigError
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.digest import certificate_path, distribution_digest
from srtkit_conformance.report import Report, read_report

VALID_DAYS = 365

State = Literal["valid", "other files", "expired", "not certified", "none"]


@dataclass(frozen=True)
class Standing:
    """Whether a plugin's certificate holds, and a few words about it."""

    state: State
    words: str

    def __str__(self) -> str:
        return f"{self.state}, {self.words}"


def standing_of(kind: str, name: str) -> Standing:
    """That of an installed plugin. Raises the `PluginError` that fits if there is none of that name."""
    return standing(discover().find(kind, name), datetime.now(UTC))


def standing(offer: Offer, now: datetime) -> Standing:
    """That of an offer: its files as they are, its certificate as it was written."""
    path = certificate_path(offer.distribution, offer.kind, offer.name)
    if path is None:
        return Standing("none", f"{offer.distribution} is a single file: only a package can carry one")
    if not path.exists():
        return Standing("none", f"it would be written by srt conformance run {offer.part} --report {path}")
    try:
        report = read_report(path)
    except ConfigError as error:
        return Standing("not certified", str(error))
    return _judge(report, offer, now)


def _judge(report: Report, offer: Offer, now: datetime) -> Standing:
    plugin, device = report.plugin, report.device
    age = (now - datetime.fromisoformat(report.started)).days
    words = f"level {report.level_reached} on {device.platform}:{device.index} ({device.name}), {_days(age)} old"
    if (plugin.kind, plugin.name, plugin.distribution) != (offer.kind, offer.name, offer.distribution):
        return Standing("not certified", f"the report is of {plugin.kind}:{plugin.name} of {plugin.distribution}")
    if report.level_reached is None or report.level_reached < 0:
        return Standing("not certified", f"the report reaches no level, {_days(age)} old")
    if plugin.version != offer.version:
        return Standing("other files", f"{words}; it is of version {plugin.version}")
    if plugin.digest != distribution_digest(offer.distribution):
        return Standing("other files", f"{words}; they are not those that were checked")
    if age > VALID_DAYS:
        return Standing("expired", f"{words}; it held for {VALID_DAYS} days")
    if (ours := CONTRACTS[offer.kind].version) != report.versions.core_contract:
        checked = f"{offer.kind}/{report.versions.core_contract}"
        return Standing("expired", f"{words}; it was checked against {checked}, this core has {ours}")
    return Standing("valid", words)


def _days(number: int) -> str:
    return "1 day" if number == 1 else f"{number} days"
