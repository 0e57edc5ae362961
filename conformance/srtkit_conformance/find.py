"""From KIND:NAME to a loaded target: discovery and loading are core's, under core's own rules.

A `Subject` is what travels to child processes, which load the same plugin again. Knows no kind's meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Offer, discover
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import ConfigError, DeviceAbsent
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDescriptor
from srtkit_conformance.catalogue import LOADING, Suite
from srtkit_conformance.kits.light import REFERENCE
from srtkit_conformance.target import ABSENT, Target


@dataclass(frozen=True)
class Subject:
    """Which plugin, or which mutant of it, on which device, with which seed: enough to load it anywhere.

    `loads_only`: nothing is run on the device, so it may be absent (level 0).
    """

    kind: str
    name: str
    device: str = "cpu"
    index: int = 0
    seed: int = 0
    mutant: str = ""
    loads_only: bool = False

    def replay(self, check_id: str) -> str:
        """The command that runs one check of it again."""
        device = self.device if self.index == 0 else f"{self.device}:{self.index}"
        return f"srt conformance run {self.kind}:{self.name} --device {device} --seed {self.seed} --only {check_id}"


def load_target(subject: Subject, suite: Suite, folder: Path) -> Target:
    """Load the plugin, or make the mutant of it.

    Raises the `PluginError` that fits, `DeviceAbsent` among them, and `ConfigError` for an unknown mutant.
    """
    target = _loading(subject, folder) if subject.kind == LOADING else _installed(subject, folder)
    return mutated(target, suite, subject.mutant) if subject.mutant else target


def mutated(target: Target, suite: Suite, id_: str) -> Target:
    """A mutant of the plugin. Raises `ConfigError` for an unknown one."""
    mutant = next((one for one in suite.mutants() if one.id == id_), None)
    if mutant is None:
        raise ConfigError("srt conformance", f'{suite.kind} has no mutant "{id_}"')
    return target.with_descriptor(mutant.id, mutant.make(target.descriptor))


def _installed(subject: Subject, folder: Path) -> Target:
    registry = discover()
    offer = registry.find(subject.kind, subject.name)
    descriptor = load(offer)
    of_device = offer if subject.kind == "platform" else registry.find("platform", subject.device)
    platform: PlatformDescriptor = descriptor if of_device == offer else load(of_device)
    with calling(of_device):
        facts = _facts(of_device, platform, subject)
    with calling(offer):
        options = descriptor.options()
    return Target(
        kind=subject.kind,
        name=offer.name,
        descriptor=descriptor,
        options=options,
        facts=facts,
        platform_descriptor=platform,
        folder=folder,
        seed=subject.seed,
        distribution=offer.distribution,
        version=offer.version,
        group=offer.group,
        value=offer.value,
        device_index=subject.index,
    )


def _facts(offer: Offer, platform: PlatformDescriptor, subject: Subject) -> DeviceFacts:
    devices = platform.probe(platform.options())
    if devices and subject.index < devices[0].count:
        return devices[0]
    if subject.loads_only:
        return DeviceFacts(platform=offer.name, name=ABSENT, architecture=ABSENT)
    cause = f"has no device {subject.index} here" if devices else "its device is not here"
    raise DeviceAbsent(offer.part, f"{cause} ({offer})", "run level 0, or name another device with --device")


def _loading(subject: Subject, folder: Path) -> Target:
    """The toy plugin that the checks of loading are proved with: its descriptor is the text of a distribution."""
    cpu = load(discover().find("platform", "cpu"))
    facts = cpu.probe(cpu.options())[0]
    return Target(LOADING, subject.name, REFERENCE, NoOptions(), facts, cpu, folder, seed=subject.seed)
