"""The wiring plan, data that travels to child processes as JSON, and the plugins of it, loaded.

Loading a plan discovers nothing and verifies everything. `blame` says whose fault an error of the run is.
"""

import hashlib
import importlib.metadata
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from srtkit.plugins.loading import load, remedy
from srtkit.plugins.registry import Offer
from srtkit.spec.errors import EngineError, PluginBroken, PluginIncompatible, PluginNotFound, SrtError

STARTING = "while starting"
STEPPING = "during a step"


@dataclass(frozen=True)
class WiredPlugin:
    """One plugin in one role. `options` are complete, as JSON values.

    `role` is "use", for attention also "prefill", "decode", "mla", "draft", "shadow"; for a plugin that
    another one needs it is that need's role, and `owner` is the other's `id` ("" for all else).
    """

    offer: Offer
    contract: str
    options: dict[str, Any]
    role: str = "use"
    owner: str = ""

    @property
    def part(self) -> str:
        """How messages name it: "attention:aiter"."""
        return self.offer.part

    @property
    def id(self) -> str:
        """Unique in its plan: "attention:aiter", "attention:torch@shadow", "prefix_cache:hiradix/…"."""
        local = self.part if self.role == "use" else f"{self.part}@{self.role}"
        return f"{self.owner}/{local}" if self.owner else local


@dataclass(frozen=True)
class WiringPlan:
    """All plugins of a run in build order: what a plugin needs stands before it, the platform first.

    `degraded` holds a sentence for every fallback taken; empty means as configured.
    """

    plugins: tuple[WiredPlugin, ...]
    degraded: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the plan, hexadecimal: equal in every process of a run."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


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

    def needed(self, kind: str) -> tuple[LoadedPlugin, ...]:
        """The plugins of a kind that others need."""
        return tuple(p for p in self.plugins if p.wired.offer.kind == kind and p.wired.owner)

    def build(self, plugin: LoadedPlugin, requests: Mapping[str, Any], **given: object) -> Any:
        """The plugin's object, after those it needs: they and `given` are its `needs` by role, and it closes them.

        `requests` holds for each kind what core gives it at build (`AttentionBuild` …), whatever its options.
        """
        request, needs = requests[plugin.wired.offer.kind], self.build_needs(plugin, requests)
        return plugin.descriptor.build(replace(request, options=plugin.options, needs=needs | given))

    def build_needs(self, plugin: LoadedPlugin, requests: Mapping[str, Any]) -> dict[str, Any]:
        """What a plugin needs of the kinds that `requests` has, by role."""
        needed = (one for one in self.plugins if one.wired.owner == plugin.wired.id)
        return {one.wired.role: self.build(one, requests) for one in needed if one.wired.offer.kind in requests}


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


def blame(error: BaseException, wiring: WiringPlan, doing: str) -> SrtError:
    """The error as an `SrtError`: unchanged if it is one, else naming the plugin (or core) that raised it.

    `doing` is `STARTING` or `STEPPING`; a plugin that raises while it is built is `PluginBroken`.
    """
    if isinstance(error, SrtError):
        return error
    offers = {plugin.offer.value.partition(":")[0].partition(".")[0]: plugin.offer for plugin in wiring.plugins}
    roots = [str(f.f_globals.get("__name__", "")).partition(".")[0] for f, _ in traceback.walk_tb(error.__traceback__)]
    tail = traceback.extract_tb(error.__traceback__)
    where = f"{tail[-1].filename}:{tail[-1].lineno} in {tail[-1].name}" if tail else "unknown place"
    cause = f"raised {type(error).__name__} {doing}: {error} ({where}"
    for offer in (offers[root] for root in reversed(roots) if root in offers):
        kind = PluginBroken if doing == STARTING else EngineError
        return kind(offer.part, f"{cause}; {offer})", remedy(offer, error))
    return EngineError("engine", f"{cause})", "report it to its author")
