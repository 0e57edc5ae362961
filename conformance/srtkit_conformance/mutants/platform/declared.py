"""Platforms that say what is not so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import Finding, PlatformDefaults, PlatformDescriptor
from srtkit_conformance.mutant import mutant

Probe = Callable[[BaseModel], Sequence[DeviceFacts]]


def _probe_by_torch(inner: Probe, options: BaseModel) -> Sequence[DeviceFacts]:
    import torch

    torch.empty(0)
    return inner(options)


@mutant(
    "platform.probes_by_torch",
    of="cpu",
    sentence="probe asks torch.",
    killed_by=("platform.no_torch",),
)
def probes_by_torch(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    return replace(descriptor, probe=partial(_probe_by_torch, descriptor.probe))


def _probing(change: Callable[[DeviceFacts], DeviceFacts]) -> Callable[[PlatformDescriptor], PlatformDescriptor]:
    """With other facts."""

    def make(descriptor: PlatformDescriptor) -> PlatformDescriptor:
        return replace(descriptor, probe=lambda options: [change(one) for one in descriptor.probe(options)])

    return make


without_memory = mutant(
    "platform.without_memory",
    of="fakedev",
    sentence="The facts leave the device's memory out.",
    killed_by=("platform.probe", "platform.figures"),
)(_probing(lambda facts: replace(facts, memory_bytes=0)))

boasts_of_a_dtype = mutant(
    "platform.boasts_of_a_dtype",
    of="cpu",
    sentence="Declares a dtype without kernels for it.",
    killed_by=("platform.dtypes",),
)(_probing(lambda facts: replace(facts, dtypes=facts.dtypes | {"float8_e4m3fn"})))

boasts_of_graphs = mutant(
    "platform.boasts_of_graphs",
    of="cpu",
    sentence="The facts say that graphs are captured, the object has none.",
    killed_by=("platform.graphs", "platform.graph_errors", "platform.graph_pool"),
)(_probing(lambda facts: replace(facts, graphs=True)))


@mutant(
    "platform.assumes_anything",
    of="cpu",
    sentence="Takes an unknown architecture for the usual one.",
    killed_by=("platform.assume",),
)
def assumes_anything(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    usual = descriptor.assume("x86_64")
    return replace(descriptor, assume=lambda name: descriptor.assume(name) or usual)


@mutant(
    "platform.offers_what_it_has_not",
    of="cpu",
    sentence="Offers an architecture that its table does not know.",
    killed_by=("platform.architectures",),
)
def offers_what_it_has_not(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    return replace(descriptor, architectures=(*descriptor.architectures, "z80"))


@mutant(
    "platform.needs_a_variable",
    of="cpu",
    sentence="Examines the machine by a variable that need not be set.",
    killed_by=("platform.examine",),
)
def needs_a_variable(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    return replace(descriptor, examine=lambda environment: [Finding("ok", "home", environment["HOME"])])


@mutant(
    "platform.finds_maybe",
    of="cpu",
    sentence="A finding has a verdict of its own.",
    killed_by=("platform.examine",),
    note="what it says is wrong, where another fails to say it",
)
def finds_maybe(descriptor: PlatformDescriptor) -> PlatformDescriptor:
    return replace(descriptor, examine=lambda environment: [Finding("maybe", "driver", "is somewhat old")])


def _defaulting(
    change: Callable[[PlatformDefaults], PlatformDefaults],
) -> Callable[[PlatformDescriptor], PlatformDescriptor]:
    """With other defaults."""

    def make(descriptor: PlatformDescriptor) -> PlatformDescriptor:
        return replace(descriptor, defaults=lambda facts: change(descriptor.defaults(facts)))

    return make


misspelt_default = mutant(
    "platform.misspelt_default",
    of="cpu",
    sentence="A default names an attention backend that does not exist.",
    killed_by=("platform.defaults",),
)(_defaulting(lambda said: replace(said, plugins={**said.plugins, "attention": ("troch",)})))

sets_core = mutant(
    "platform.sets_core",
    of="cpu",
    sentence="Its environment holds a setting of core.",
    killed_by=("platform.rank_environment",),
)(_defaulting(lambda said: replace(said, environment={"SRT_MEMORY__FRACTION": "0.9"})))
