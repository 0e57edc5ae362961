"""From settings to a wiring plan: the platform first, then what the file names, then what stands in for the rest.

The file is the allow list: a plugin is imported only if it is named, chosen by the named platform, needed
by a chosen one, or a default. Runs in the parent; children use `loaded`. Knows no kind's meaning.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from srtkit.config.hints import did_you_mean
from srtkit.config.origin import KeyPath, validated
from srtkit.config.settings import Settings
from srtkit.plugins.catalogue import DEFAULTS, normal_name, official_names
from srtkit.plugins.loaded import WiredPlugin, WiringPlan
from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Offer, Registry
from srtkit.spec.errors import ConfigError, DeviceAbsent, PluginError, PluginNotFound
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.platform import PlatformDefaults
from srtkit.spec.versions import CONTRACTS

_log = logging.getLogger(__name__)

# Roles beside `use`, in build order.
ATTENTION_ROLES = ("prefill", "decode", "mla", "draft", "shadow")

# Where a table of options stands in the file, and what it holds.
_Table = tuple[KeyPath, dict[str, Any]]


def wire(
    settings: Settings, registry: Registry, assume: str | None = None
) -> tuple[WiringPlan, DeviceFacts, PlatformDefaults]:
    """Resolve every plugin of a run, and the facts and defaults of its platform.

    `assume` takes the facts of a named architecture from the platform's table instead of the device.
    Raises `ConfigError` for options, and the `PluginError` that fits: not found, broken, incompatible,
    duplicate, device absent.
    """
    wirer = _Wirer(settings, registry)
    facts, defaults = wirer.add_platform(assume)
    for kind in CONTRACTS:
        if kind not in ("platform", "kv_store", "cli"):  # a store comes in as a need of a cache
            wirer.add_kind(kind, wirer.choose(kind, defaults))
    return WiringPlan(tuple(wirer.plugins), tuple(wirer.degraded)), facts, defaults


@dataclass(frozen=True)
class _Want:
    """A plugin to resolve, whose options `table` stands at `place` in the file. `owner` is the id of what needs it."""

    kind: str
    name: str
    role: str
    place: KeyPath
    table: Mapping[str, Any]
    owner: str = ""


@dataclass
class _Wirer:
    """One run of `wire`: collects plugins in build order."""

    settings: Settings
    registry: Registry
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
            known = f", only for {', '.join(descriptor.architectures)}" if descriptor.architectures else ""
            raise ConfigError(offer.part, f'has no table entry for "{assume}"{known}', "leave --assume out to probe")
        if facts is None:
            remedy = "`srt config init --detect` writes a file for this machine"
            raise DeviceAbsent(offer.part, f"its device is not here ({offer})", remedy)
        _log.debug("probe %s: %d x %s (%s)", offer.part, facts.count, facts.name, facts.architecture)
        with calling(offer):
            return facts, descriptor.defaults(facts)

    def choose(self, kind: str, defaults: PlatformDefaults) -> list[tuple[str, str]]:
        """What the file names for a kind, or what stands in for it: (role, name) pairs in order."""
        is_gguf = kind == "model_loader" and self.settings.model.source.endswith(".gguf")
        choices = {
            "file": getattr(self.settings, kind).use,
            "form of the source": ("gguf",) if is_gguf else None,
            "platform": defaults.plugins.get(kind),
            "default": DEFAULTS.get(kind, ()),
        }
        by, chosen = next((by, names) for by, names in choices.items() if names is not None)
        names: list[str] = [chosen] if isinstance(chosen, str) else list(chosen)
        if kind == "graph_runner" and "eager" not in map(normal_name, names):
            names.append("eager")  # the last resort of every step
        if by == "platform":  # an order of preference: what is not installed is no loss
            names = [n for n in names if any(one.name == normal_name(n) for one in self.registry.of(kind))] or names
        _log.debug("choose %s: %s (by %s)", kind, ", ".join(names) or "none", by)
        roles = self.settings.attention.model_dump(include=set(ATTENTION_ROLES)) if kind == "attention" else {}
        return [*(("use", name) for name in names), *((role, name) for role, name in roles.items() if name is not None)]

    def add_kind(self, kind: str, chosen: Sequence[tuple[str, str]]) -> None:
        """Wire the chosen plugins of a kind, each with its table of options."""
        tables = self._tables(kind, {_bare(name) for role, name in chosen if role != "shadow"})
        empty: _Table = ((kind, "options"), {})
        spare = [("fallback", name) for name in (self.settings.attention.fallback if kind == "attention" else ())]
        wants = [_Want(kind, name, role, *tables.get(_bare(name), empty)) for role, name in (*chosen, *spare)]
        wants = [self._shadow(want, tables) if want.role == "shadow" else want for want in wants]
        for want in wants[len(chosen) :]:
            self._find(want)  # one that is not installed is a mistake also where it is not needed
        # Alternatives: the first that covers the model serves (config/resolve.py).
        uses = [want for want in wants if kind == "attention" and want.role in ("use", "fallback")]
        for alternatives in (uses, *([want] for want in wants if want not in uses)):
            self.plugins += self._wire(alternatives)

    def _shadow(self, named: _Want, tables: Mapping[str, _Table]) -> _Want:
        """The plugin that compares, which needs the one that the file names."""
        place, table = tables.get("shadow", (("attention", "options", "shadow"), {}))
        return replace(named, name="shadow", place=place, table={**table, "watch": "", "against": named.name})

    def _tables(self, kind: str, chosen: set[str]) -> dict[str, _Table]:
        """The options tables of plugins by name: each one's own, and the kind's for its only plugin.

        Tables of plugins that are not chosen are left alone, so that `--set attention.use=…` can switch.
        """
        known = {*chosen, *official_names(kind), *(offer.name for offer in self.registry.of(kind))}
        options: dict[str, Any] = getattr(self.settings, kind).options
        own = {key for key, value in options.items() if isinstance(value, dict) and normal_name(key) in known}
        tables: dict[str, _Table] = {normal_name(key): ((kind, "options", key), options[key]) for key in own}
        shared = {key: value for key, value in options.items() if key not in own}
        ambiguous = len(chosen) != 1 or not tables.keys().isdisjoint(chosen)
        for key, value in shared.items():
            hint = did_you_mean(key, known) if isinstance(value, dict) else ""  # a plugin's table, misspelt
            if hint or ambiguous:
                cause = f'"{key}" in [{kind}.options] may belong to any of: {", ".join(sorted(chosen)) or "no plugin"}'
                where = self.settings.origin.where((kind, "options", key))
                raise ConfigError(where, cause, hint or f"write it in a plugin's own table, [{kind}.options.NAME]")
        return dict.fromkeys(chosen, ((kind, "options"), shared)) | tables

    def _wire(self, alternatives: Sequence[_Want]) -> list[WiredPlugin]:
        """All that can be wired. Raises the first one's error when none can."""
        found: list[WiredPlugin] = []
        errors: list[PluginError] = []
        for want in alternatives:
            try:
                wired = self._resolve(want)
            except PluginError as error:
                _log.debug("refuse %s: %s", error.part, error.cause)
                errors.append(error)
            else:
                if errors and not found:
                    self.degraded.append(f"{want.kind} falls back to {want.name}: {errors[0].part} {errors[0].cause}")
                found += wired
        if errors and not found:
            raise errors[0]
        return found

    def _find(self, want: _Want) -> Offer:
        try:
            return self.registry.find(want.kind, want.name)
        except PluginNotFound as error:
            place = self.settings.origin.places.get((want.kind, want.role))
            remedy = f"{error.remedy} (named by {place})" if place else error.remedy
            raise PluginNotFound(error.part, error.cause, remedy) from None

    def _resolve(self, want: _Want) -> list[WiredPlugin]:
        """The plugin, preceded by what it needs."""
        offer = self._find(want)
        if offer.part in re.split("[/@]", want.owner):
            cause = f"needs itself: {want.owner} -> {offer.part}"
            raise ConfigError(offer.part, cause, "break the circle in the options tables")
        descriptor = load(offer)
        options = validated(descriptor.options, want.table, self.settings.origin, want.place)
        role = "use" if want.role == "fallback" else want.role
        wired = WiredPlugin(offer, descriptor.contract, options.model_dump(mode="json"), role, want.owner)
        with calling(offer):
            needs = list(descriptor.needs(options))
        result: list[WiredPlugin] = []
        for need in needs:
            _log.debug("need %s: %s:%s as %s", offer.part, need.kind, need.name, need.role)
            place = (*want.place, need.role)
            result += self._resolve(_Want(need.kind, need.name, need.role, place, need.options, wired.id))
        return [*result, wired]


def _bare(name: str) -> str:
    """The plugin's name without the distribution that may stand before it."""
    return normal_name(name.rpartition(":")[2])
