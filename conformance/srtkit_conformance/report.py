"""The report of a run: what was checked, on what, and what came of it. Data, with its JSON form.

The form is versioned by `schema`: fields are only added while it stays the same.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from srtkit.spec.errors import ConfigError
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.capabilities import declared, plain
from srtkit_conformance.digest import distribution_digest
from srtkit_conformance.result import Result, level_reached
from srtkit_conformance.target import Target
from srtkit_conformance.waivers import Waiver, WaiverUse, used

SCHEMA = 1
SUITE = "srtkit-conformance"


@dataclass(frozen=True)
class SuiteFacts:
    """Which suite judged: its version, and the digest of its files."""

    version: str
    digest: str


@dataclass(frozen=True)
class PluginFacts:
    """What was judged. `digest` is that of the distribution's files; `declared` a snapshot of its capabilities."""

    kind: str
    name: str
    distribution: str
    version: str
    digest: str
    contract: str
    declared: Any
    options: dict[str, Any]


@dataclass(frozen=True)
class DeviceReport:
    """Where it ran. `driver` and the like are in `extra`, as the platform names them."""

    platform: str
    index: int
    name: str
    architecture: str
    memory_bytes: int
    extra: dict[str, str]


@dataclass(frozen=True)
class Versions:
    """What it ran with. `core_contract` is the contract version of this core; `torch` is "" where there is none."""

    core: str
    core_contract: str
    python: str
    torch: str
    system: str


@dataclass(frozen=True)
class Report:
    """A run. `level_reached` is -1 for none, and None if only single checks were asked for."""

    plugin: PluginFacts
    device: DeviceReport
    versions: Versions
    suite: SuiteFacts
    seed: int
    level_asked: int
    level_reached: int | None
    exit_code: int
    started: str
    seconds: float
    checks: tuple[Result, ...]
    waivers: tuple[WaiverUse, ...] = ()
    schema: int = SCHEMA

    def counts(self) -> dict[str, int]:
        """Verdict → how many checks have it."""
        verdicts = [one.verdict for one in self.checks]
        return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}


@dataclass
class Clock:
    """When a run began."""

    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def seconds(self) -> float:
        """Since then."""
        return (datetime.now(UTC) - self.started).total_seconds()


def make_report(
    target: Target,
    results: Sequence[Result],
    level: int | None,
    waivers: Mapping[str, Waiver],
    clock: Clock,
) -> Report:
    """The report of a finished run; `level` is None if only single checks were asked for."""
    uses = used(waivers.values(), results)
    return Report(
        plugin=_plugin(target),
        device=_device(target),
        versions=_versions(target.kind),
        suite=SuiteFacts(importlib.metadata.version(SUITE), distribution_digest(SUITE)),
        seed=target.seed,
        level_asked=max((one.level for one in results), default=0) if level is None else level,
        level_reached=None if level is None else level_reached(results, level),
        exit_code=_exit_code(results, uses),
        started=clock.started.isoformat(timespec="seconds"),
        seconds=clock.seconds(),
        checks=tuple(results),
        waivers=uses,
    )


def write_report(report: Report, path: Path) -> None:
    """Write the JSON form."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def read_report(path: Path) -> Report:
    """Read the JSON form. Raises `ConfigError` for a file that is none, or of another schema."""
    try:
        data = path.read_bytes()
        schema = msgspec.json.decode(data).get("schema")
        report = msgspec.json.decode(data, type=Report)
    except (OSError, AttributeError, msgspec.DecodeError) as error:
        raise ConfigError(str(path), f"is no report of srt conformance: {error}") from None
    if schema != SCHEMA:
        raise ConfigError(str(path), f"has schema {schema}, this suite reads {SCHEMA}", f"use a {SUITE} of its time")
    return report


def _exit_code(results: Iterable[Result], uses: Iterable[WaiverUse]) -> int:
    """0, or 1 if a check failed without a waiver, was not run, or a waiver must go."""
    bad = any(not one.good and one.verdict != "waived" for one in results)
    return int(bad or any(one.state == "not-needed" for one in uses))


def _plugin(target: Target) -> PluginFacts:
    return PluginFacts(
        kind=target.kind,
        name=target.name,
        distribution=target.distribution,
        version=target.version,
        digest=distribution_digest(target.distribution),
        contract=target.descriptor.contract,
        declared=_declared(target),
        options=plain(target.options),
    )


def _declared(target: Target) -> Any:
    try:
        return declared(target.kind, target.descriptor, target.options, target.facts)["declared"]
    except Exception as error:  # a failed check says so, too; its report must not be lost
        return f"raised {type(error).__name__}: {error}"


def _device(target: Target) -> DeviceReport:
    facts = target.facts
    extra = dict(facts.extra)
    return DeviceReport(facts.platform, target.device_index, facts.name, facts.architecture, facts.memory_bytes, extra)


def _versions(kind: str) -> Versions:
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = ""
    core = importlib.metadata.version("srtkit-core")
    system = f"{platform.system()} {platform.machine()}"
    return Versions(core, CONTRACTS[kind].version, platform.python_version(), torch, system)
