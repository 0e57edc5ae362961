"""From settings to a wiring plan: the platform first, then what the file names, then what stands in for the rest.

The file is the allow list: a plugin is imported only if it is named, chosen by the named platform, needed
by a chosen one, or a default. Runs in the parent; children use `loaded`. Knows no kind's meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from srtkit.config.origin import KeyPath, config_error
from srtkit.config.settings import Settings
from srtkit.plugins.catalogue import DEFAULTS, OFFICIAL, plugin_name
from srtkit.plugins.loading import calling, load
from srtkit.plugins.plan import WiredPlugin, WiringPlan
from srtkit.plugins.registry import Registry
from srtkit.plugins.trace import Trace
from srtkit.spec.errors import ConfigError, DeviceAbsent, PluginError
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.versions import CONTRACTS

ATTENTION_ROLES = ("prefill", "decode", "mla", "draft", "shadow")
"""Roles beside `use`, in build order."""


def wire(
    settings: Settings,
    registry: Registry,
    *,
    assume: str | None = None,
    strict: bool = False,
    trace: Trace | None = None,
) -> tuple[WiringPlan, DeviceFacts, PlatformDefaults]:
    """Resolve every plugin of a run, and the facts and defaults of its platform.

    `assume` takes the facts of a named architecture from the platform's table instead of the device.
    Raises `ConfigError` for options, and the `PluginError` that fits: not found, broken, incompatible,
    duplicate, device absent.
    """
    wirer = _Wirer(settings, registry, strict, trace or Trace())
    facts, defaults = wirer.add_platform(assume)
    for kind in CONTRACTS:
        if kind not in ("platform", "cli"):
            wirer.add_kind(kind, wirer.choose(kind, defaults))
    return WiringPlan(tuple(wirer.plugins), tuple(wirer.degraded)), facts, defaults


@dataclass(frozen=True)
class _Want:
    """A plugin to resolve: `table` stands at `prefix` in the file, `ancestors` are those that need it."""

    kind: str
    name: str
    role: str
    table: Mapping[str, Any]
    prefix: KeyPath
    owner: str = ""
    ancestors: tuple[tuple[str, str], ...] = ()


@dataclass
class _Wirer:
    """One run of `wire`: collects plugins in build order."""

    settings: Settings
    registry: Registry
    strict: bool
    trace: Trace
    plugins: list[WiredPlugin] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)

    def add_platform(self, assume: str | None) -> tuple[DeviceFacts, PlatformDefaults]:
        """Wire the platform, and ask it for the device and for its choice of the rest."""
        self.add_kind("platform", [("use", self.settings.platform.use or DEFAULTS["platform"][0])])
        wired = self.plugins[-1]
        offer, descriptor = wired.offer, load(wired.offer)
        options = descriptor.options.model_validate(wired.options)
        with calling(offer):
            devices = [descriptor.assume(assume)] if assume else descriptor.probe(options)
        facts: DeviceFacts | None = next(iter(devices), None)
        if facts is None and assume:
            raise ConfigError(offer.part, f'has no table entry for "{assume}"', "leave --assume out to probe")
        if facts is None:
            remedy = "`srt config init --detect` writes a file for this machine"
            raise DeviceAbsent(offer.part, f"its device is not here ({offer})", remedy)
        device = f"{facts.count} x {facts.name} ({facts.architecture})"
        self.trace.add("assume" if assume else "probe", offer.part, device)
        with calling(offer):
            return facts, descriptor.defaults(facts)

    def choose(self, kind: str, defaults: PlatformDefaults) -> list[tuple[str, str]]:
        """What the file names for a kind, or what stands in for it: (role, name) pairs in order."""
        use = self._section(kind).use
        names, by = ((use,) if isinstance(use, str) else use), "file"
        if names is None and kind == "model_loader" and self.settings.model.source.endswith(".gguf"):
            names, by = ("gguf",), "form of the source"
        if names is None and kind in defaults.plugins:
            names, by = tuple(defaults.plugins[kind]), "platform"
        if names is None:
            names, by = DEFAULTS.get(kind, ()), "default"
        if kind == "graph_runner" and "eager" not in map(plugin_name, names):
            names = (*names, "eager")  # the last resort of every step
        self.trace.add("choose", kind, f"{', '.join(names) or 'none'} (by {by})")
        roles = self.settings.attention.model_dump(include=set(ATTENTION_ROLES)) if kind == "attention" else {}
        return [*(("use", name) for name in names), *((role, name) for role, name in roles.items() if name is not None)]

    def add_kind(self, kind: str, chosen: Sequence[tuple[str, str]]) -> None:
        """Wire the chosen plugins of a kind, each with its table of options."""
        bare = {name: plugin_name(name.rpartition(":")[2]) for _, name in chosen}
        tables, flat = self._options(kind, set(bare.values()))
        if flat and (len(set(bare.values())) != 1 or not tables.keys().isdisjoint(bare.values())):
            key = next(iter(flat))
            cause = f'"{key}" in [{kind}.options] may belong to any of: {", ".join(bare.values()) or "no plugin"}'
            where = self.settings.origin.where((kind, "options", key))
            raise ConfigError(where, cause, f"write it in a plugin's own table, [{kind}.options.NAME]")
        for role, name in chosen:
            key, table = tables.get(bare[name], ("", flat))
            prefix = (kind, "options", key) if key else (kind, "options")
            try:
                self.plugins += self._resolve(_Want(kind, name, role, table, prefix))
            except PluginError as error:
                if (kind, role) != ("attention", "use"):
                    raise
                self._fall_back(tables, error)

    def _fall_back(self, tables: Mapping[str, tuple[str, dict[str, Any]]], error: PluginError) -> None:
        """Wire the first attention fallback that can be, or raise `error`."""
        for name in self.settings.attention.fallback:
            key, table = tables.get(plugin_name(name), (name, {}))
            try:
                self.plugins += self._resolve(_Want("attention", name, "use", table, ("attention", "options", key)))
            except PluginError as another:
                self.trace.add("refuse", another.part, another.cause)
                continue
            self.degraded.append(f"attention falls back to {name}: {error.part} {error.cause}")
            return
        raise error

    def _options(self, kind: str, chosen: set[str]) -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, Any]]:
        """A kind's options table, split: sub-tables by plugin name (with the key as written), and the rest.

        Sub-tables of plugins that are not chosen are left alone, so that `--set attention.use=…` can
        switch between them.
        """
        known = {*chosen, *OFFICIAL.get(kind, ()), *(offer.name for offer in self.registry.of(kind))}
        options: dict[str, Any] = self._section(kind).options
        tables = {
            plugin_name(key): (key, value)
            for key, value in options.items()
            if isinstance(value, dict) and plugin_name(key) in known
        }
        written = {key for key, _ in tables.values()}
        return tables, {key: value for key, value in options.items() if key not in written}

    def _section(self, kind: str) -> Any:
        return getattr(self.settings, kind)

    def _resolve(self, want: _Want) -> list[WiredPlugin]:
        """The plugin, preceded by what it needs."""
        offer = self.registry.find(want.kind, want.name)
        if (offer.kind, offer.name) in want.ancestors:
            chain = " -> ".join(f"{kind}:{name}" for kind, name in (*want.ancestors, (offer.kind, offer.name)))
            raise ConfigError(offer.part, f"needs itself: {chain}", "break the circle in the options tables")
        descriptor = load(offer, strict=self.strict, trace=self.trace)
        try:
            options: BaseModel = descriptor.options.model_validate(want.table)
        except ValidationError as error:
            raise config_error(error, descriptor.options, self.settings.origin, want.prefix) from None
        wired = WiredPlugin(
            kind=offer.kind,
            name=offer.name,
            distribution=offer.distribution,
            version=offer.version,
            value=offer.value,
            contract=descriptor.contract,
            options=options.model_dump(mode="json"),
            role=want.role,
            owner=want.owner,
        )
        with calling(offer):
            needs = list(descriptor.needs(options))
        result: list[WiredPlugin] = []
        for need in needs:
            self.trace.add("need", offer.part, f"{need.kind}:{need.name} as {need.role}")
            ancestors = (*want.ancestors, (offer.kind, offer.name))
            prefix = (*want.prefix, need.role)
            result += self._resolve(_Want(need.kind, need.name, need.role, need.options, prefix, wired.id, ancestors))
        return [*result, wired]
