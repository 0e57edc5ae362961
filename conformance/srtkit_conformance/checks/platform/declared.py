"""What a platform's descriptor says without a device object: facts, a table of devices, defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from srtkit.plugins.catalogue import OFFICIAL
from srtkit.plugins.registry import discover
from srtkit.spec.errors import PluginNotFound
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.kv import ITEM_BYTES
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.versions import CONTRACTS
from srtkit_conformance.check import Failed, Informational, Outcome, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.platform.facts import absent, assumed, describe, facts_of, here_or_assumed
from srtkit_conformance.target import Target

NOT_HERE = "the device is not here, and the table knows none of the usual architectures"
UNKNOWN = ("no such architecture", "", "sm_0")
VERDICTS = ("ok", "warn", "fail")


@check(
    "platform.no_torch",
    level=0,
    clause="platform/1.0: all but build import no torch",
    explain="probe asks torch or a library that imports it. Read the driver's files, or load its library by ctypes.",
)
def no_torch(target: Target) -> Outcome:
    if not can_travel(target.descriptor, target.options):
        return Informational("its functions cannot be imported by name, so a new process cannot call them")
    found = imported_by(describe, target.descriptor, target.options)
    expect(not found, "probe, assume or defaults import torch")
    return None


@check(
    "platform.probe",
    level=0,
    clause="platform/1.0: probe(options): the devices that are here; never raises for absence",
    explain="A field of the facts is empty or of another form than the contract's, or two calls differ.",
)
def probe(target: Target) -> Outcome:
    first, second = ([_identity(one) for one in target.descriptor.probe(target.options)] for _ in range(2))
    expect(first == second, "two calls find different devices", observed=second, limit=first)
    if absent(target):
        return Informational("it finds no device here, so that its facts are not judged")
    facts = facts_of(target)
    _sound(facts)
    return {"devices": facts.count, "memory_bytes": facts.memory_bytes}


@check(
    "platform.assume",
    level=0,
    clause="platform/1.0: assume(architecture): facts from a table without probing, None for an unknown name",
    explain="An unknown name must not become some other device: a configuration would be checked against it.",
)
def assume(target: Target) -> Outcome:
    for name in UNKNOWN:
        found = target.descriptor.assume(name)
        expect(found is None, f"assume({name!r}) makes a device of an unknown name", observed=found, limit=None)
    if absent(target):
        tables = assumed(target)
        for architecture, table in tables.items():
            _is(table, target.facts.platform, architecture)
        return {"architectures": len(tables)} if tables else Informational(NOT_HERE)
    here = facts_of(target)
    table = target.descriptor.assume(here.architecture)
    if table is None:
        return Informational(f"the table does not know {here.architecture}, the device that is here")
    _is(table, here.platform, here.architecture)
    return None


@check(
    "platform.architectures",
    level=0,
    clause="platform/1.1: architectures: names that assume knows, for messages",
    explain="A message offers a name that --assume then does not take.",
)
def architectures(target: Target) -> Outcome:
    names = target.descriptor.architectures
    for name in names:
        table = target.descriptor.assume(name)
        expect(table is not None, "assume does not know an architecture that is offered", observed=name)
        _is(table, target.facts.platform, name)
    return {"architectures": len(names)} if names else Informational("it offers none")


@check(
    "platform.examine",
    level=0,
    clause="platform/1.1: examine(environment): what srt doctor says of this machine; never raises",
    explain="Variables may be missing or nonsense. A verdict is ok, warn or fail; subject and detail are a line each.",
)
def examine(target: Target) -> Outcome:
    nonsense = dict.fromkeys(("PATH", "HOME", *(f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR"))), "-1,x")
    findings = [one for environment in ({}, nonsense) for one in target.descriptor.examine(environment)]
    for one in findings:
        expect(one.verdict in VERDICTS, "a verdict of no known word", observed=one.verdict, limit=VERDICTS)
        lines = (one.subject.splitlines(), one.detail.splitlines())
        expect(all(len(text) == 1 for text in lines), "subject or detail is not one line", observed=one)
    return {"findings": len(findings)} if findings else Informational("it looks at nothing")


@check(
    "platform.defaults",
    level=0,
    clause="platform/1.0: defaults(facts): the sensible choice of other plugins",
    explain="A plugin is named that neither is installed nor has an official distribution: a file that names only the "
    "platform cannot start. Or a kind is misspelt, or the dtype is none of the device's.",
)
def defaults(target: Target) -> Outcome:
    said = [_sensible(target.descriptor.defaults(facts), facts) for facts in here_or_assumed(target)]
    return {"kinds": max(len(one.plugins) for one in said)} if said else Informational(NOT_HERE)


def _sensible(said: PlatformDefaults, facts: DeviceFacts) -> PlatformDefaults:
    expect(said.dtype in facts.dtypes, "the default dtype is none of the device's", observed=said.dtype)
    expect(0 < said.memory_fraction <= 1, "the default share of memory is none", observed=said.memory_fraction)
    registry = discover()
    for kind, names in said.plugins.items():
        expect(kind in CONTRACTS and kind != "platform", "a default for a kind that has none", observed=kind)
        for name in names:
            try:
                registry.find(kind, name)
            except PluginNotFound:
                known = OFFICIAL.get(f"{kind}:{name}", "")
                expect(bool(known), "a default names a plugin that nobody has", observed=f"{kind}:{name}")
    return said


@check(
    "platform.rank_environment",
    level=0,
    clause="platform/1.0: environment holds variables that must stand in a rank's environment before it starts",
    explain="Names must be those of environment variables and values text; SRT_ names are core's own settings.",
)
def rank_environment(target: Target) -> Outcome:
    said = [target.descriptor.defaults(facts).environment for facts in here_or_assumed(target)]
    for environment in said:
        _settable(environment)
    return {"variables": max(map(len, said))} if said else Informational(NOT_HERE)


def _settable(environment: Mapping[str, object]) -> None:
    for name, value in environment.items():
        expect(bool(re.fullmatch(r"[A-Z_][A-Z0-9_]*", name)), "no name of an environment variable", observed=name)
        expect(not name.startswith("SRT_"), "SRT_ variables are settings of core", observed=name)
        expect(isinstance(value, str) and "\0" not in value, f"the value of {name} is no text", observed=repr(value))


def _identity(facts: DeviceFacts) -> tuple[object, ...]:
    """Facts that do not change while a machine runs."""
    return facts.platform, facts.name, facts.architecture, facts.count, facts.dtypes, facts.graphs, facts.async_launch


def _is(table: DeviceFacts, platform: str, architecture: str) -> None:
    """The table's device is the one that was asked for."""
    _sound(table)
    found, asked = (table.platform, table.architecture), (platform, architecture)
    expect(found == asked, "the table's device is another one", observed=found, limit=asked)


def _sound(facts: DeviceFacts) -> None:
    rules: dict[str, Callable[[DeviceFacts], bool]] = {
        "platform, name and architecture say something": lambda f: all((f.platform, f.name, f.architecture)),
        "count is at least 1": lambda f: f.count >= 1,
        "memory_bytes is the total of a device": lambda f: f.memory_bytes > 0,
        "dtypes are torch names that the contract knows": lambda f: bool(f.dtypes) and f.dtypes <= ITEM_BYTES.keys(),
        "fp8 is e4m3fn, e4m3fnuz or None": lambda f: f.fp8 in (None, "e4m3fn", "e4m3fnuz"),
        "extra maps text to text": lambda f: all(isinstance(one, str) for pair in f.extra.items() for one in pair),
    }
    for rule, holds in rules.items():
        if not holds(facts):
            raise Failed(f"facts: {rule}", observed=facts)
