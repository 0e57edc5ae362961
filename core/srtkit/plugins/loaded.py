"""Loading exactly a plan, as child processes do: nothing is discovered, everything is verified."""

import importlib.metadata
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from srtkit.plugins.loading import load
from srtkit.plugins.plan import WiredPlugin, WiringPlan
from srtkit.spec.errors import PluginBroken, PluginIncompatible, PluginNotFound


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin of the plan with its descriptor (of the kind's type) and its validated options."""

    wired: WiredPlugin
    descriptor: Any
    options: BaseModel


@dataclass(frozen=True)
class LoadedPlugins:
    """The plugins of a plan, in its order."""

    plugins: tuple[LoadedPlugin, ...]

    def all(self, kind: str, role: str = "use") -> tuple[LoadedPlugin, ...]:
        """The chosen plugins of a kind in one role, in the file's order; possibly none."""
        return tuple(p for p in self.plugins if (p.wired.offer.kind, p.wired.role, p.wired.owner) == (kind, role, ""))

    def one(self, kind: str, role: str = "use") -> LoadedPlugin:
        """The chosen plugin of a kind in one role; `PluginNotFound` when the plan has none."""
        for plugin in self.all(kind, role):
            return plugin
        raise PluginNotFound(kind, f"no plugin is chosen for {role}", f'name one: [{kind}] {role} = "…"')


def load_wiring(plan: WiringPlan) -> LoadedPlugins:
    """Import the plugins of `plan` and verify that they are the same ones.

    Raises `PluginIncompatible` when a distribution, contract or options model differs from the plan.
    """
    return LoadedPlugins(tuple(_load(plugin) for plugin in plan.plugins))


def _load(wired: WiredPlugin) -> LoadedPlugin:
    offer = wired.offer
    try:
        version = importlib.metadata.version(offer.distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    _same(wired, f"{offer.distribution} {offer.version}", f"{offer.distribution} {version}")
    descriptor = load(offer)
    _same(wired, f"contract {wired.contract}", f"contract {descriptor.contract}")
    try:
        options = descriptor.options.model_validate(wired.options)
    except ValidationError as error:
        raise PluginBroken(wired.part, f"refuses the plan's options: {error}", "restart after a re-install") from None
    _same(wired, f"options {wired.options}", f"options {options.model_dump(mode='json')}")
    return LoadedPlugin(wired, descriptor, options)


def _same(wired: WiredPlugin, planned: str, here: str) -> None:
    if planned != here:
        cause = f"the plan says {planned}, here it is {here}"
        raise PluginIncompatible(wired.part, cause, "install the same versions on every host, and restart")
