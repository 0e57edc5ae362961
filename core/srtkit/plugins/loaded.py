"""Loading exactly a plan, as child processes do: nothing is discovered, everything is verified."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from srtkit.plugins.loading import load
from srtkit.plugins.plan import WiredPlugin, WiringPlan
from srtkit.plugins.trace import Trace
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

    plan: WiringPlan
    plugins: tuple[LoadedPlugin, ...]

    def all(self, kind: str, role: str = "use") -> tuple[LoadedPlugin, ...]:
        """The chosen plugins of a kind in one role, in the file's order; possibly none."""
        return tuple(p for p in self.plugins if (p.wired.kind, p.wired.role, p.wired.owner) == (kind, role, ""))

    def one(self, kind: str, role: str = "use") -> LoadedPlugin:
        """The chosen plugin of a kind in one role; `PluginNotFound` when the plan has none."""
        found = self.all(kind, role)
        if not found:
            raise PluginNotFound(kind, f"no plugin is chosen for {role}", f'name one: [{kind}] {role} = "…"')
        return found[0]

    def named(self, kind: str, name: str) -> LoadedPlugin:
        """The plugin of that name among the chosen ones; `PluginNotFound` when it is not there."""
        for plugin in self.plugins:
            if (plugin.wired.kind, plugin.wired.name, plugin.wired.owner) == (kind, name, ""):
                return plugin
        raise PluginNotFound(f"{kind}:{name}", "is not part of this run", f"name it under [{kind}]")

    def needs(self, plugin: LoadedPlugin) -> dict[str, LoadedPlugin]:
        """What must be built for `plugin` first and passed to its build, by role."""
        return {p.wired.role: p for p in self.plugins if p.wired.owner == plugin.wired.id}


def load_wiring(plan: WiringPlan, kinds: Collection[str] | None = None, *, trace: Trace | None = None) -> LoadedPlugins:
    """Import the plugins of `plan` (of `kinds` only, where given) and verify that they are the same ones.

    Raises `PluginIncompatible` when a distribution, contract or options model differs from the plan.
    """
    wanted = [plugin for plugin in plan.plugins if kinds is None or plugin.kind in kinds]
    return LoadedPlugins(plan, tuple(_load_wired(plugin, trace) for plugin in wanted))


def _load_wired(wired: WiredPlugin, trace: Trace | None) -> LoadedPlugin:
    try:
        version = importlib.metadata.version(wired.distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    _same(wired, f"{wired.distribution} {wired.version}", f"{wired.distribution} {version}")
    descriptor = load(wired.offer, trace=trace)
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
