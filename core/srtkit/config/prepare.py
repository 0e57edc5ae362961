"""From settings to all decisions of a run: wire, describe the model, resolve. Reads no weights, imports no torch.

The parent prepares; a rank gets `RankSpec`, the same facts as data, and arrives at the same `EngineConfig`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from srtkit.config.check import check
from srtkit.config.kv_scales import kv_scales_file
from srtkit.config.resolve import EngineConfig, resolve
from srtkit.config.settings import Settings
from srtkit.config.source import resolve_source
from srtkit.plugins.loaded import STARTING, LoadedPlugin, LoadedPlugins, WiringPlan, blame, load_wiring
from srtkit.plugins.registry import discover
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import LoaderError, SrtError
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.model_loader import ModelDescription
from srtkit.spec.platform import PlatformDefaults


@dataclass(frozen=True)
class RankSpec:
    """What a rank process is told, as JSON: nothing is discovered or probed again."""

    settings: dict[str, Any]
    wiring: WiringPlan
    facts: DeviceFacts
    defaults: PlatformDefaults
    path: str
    config: dict[str, Any]
    folder: str
    rank: int = 0


@dataclass(frozen=True)
class Run:
    """A prepared run."""

    settings: Settings
    wiring: WiringPlan
    loaded: LoadedPlugins
    facts: DeviceFacts
    defaults: PlatformDefaults
    path: Path
    description: ModelDescription
    config: EngineConfig

    def rank_spec(self, folder: Path) -> RankSpec:
        """What rank 0 is told."""
        settings, config = self.settings.model_dump(mode="json"), dict(self.description.config)
        return RankSpec(settings, self.wiring, self.facts, self.defaults, str(self.path), config, str(folder))


def prepare(settings: Settings, *, assume: str | None = None, serving: bool = False) -> Run:
    """Decide everything, with the error that fits when something is wrong. `serving`: with a process for each rank."""
    wiring, facts, defaults, loaded = checked_wiring(settings, assume, serving)
    path = resolve_source(settings.model.source, settings.model.revision)
    with _blaming(settings, wiring):
        loader = choose_loader(loaded, path)
        description = loader.descriptor.describe(path, loader.options)
        config = resolve(settings, loaded, facts, defaults, description.config)
    if settings.memory.kv_dtype.startswith("float8") and not kv_scales_file(path).exists():
        file = f"{kv_scales_file(path)}, which `srt calibrate kv` writes"
        note = f"FP8 KV has scale 1.0 wherever the weights hold none: there is no {file}"
        config = replace(config, notes=(*config.notes, note))
    # A platform's order is a preference, a file's a promise: only to pass over what the file names degrades.
    degraded = (*wiring.degraded, *(config.passed_over if settings.attention.use else ()))
    return Run(settings, replace(wiring, degraded=degraded), loaded, facts, defaults, path, description, config)


def checked_wiring(
    settings: Settings, assume: str | None, serving: bool
) -> tuple[WiringPlan, DeviceFacts, PlatformDefaults, LoadedPlugins]:
    """All that is decided without the model. What is wrong has the error that fits, and its place in the file."""
    wiring, facts, defaults = wire(settings, discover(), assume)
    loaded = load_wiring(wiring)
    with _blaming(settings, wiring):
        check(settings, loaded, facts, defaults.dtype, serving)
    return wiring, facts, defaults, loaded


@contextmanager
def _blaming(settings: Settings, wiring: WiringPlan) -> Iterator[None]:
    """A descriptor's function that fails is its plugin's error; a refused setting is told with its place."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise blame(error, wiring, STARTING) from error
    except SrtError as error:
        place = settings.origin.places.get(tuple(error.part.split(".")))
        if place is None:
            raise
        cause = error.cause if place.endswith(error.part) else f"{error.part}: {error.cause}"
        raise type(error)(place, cause, error.remedy) from None


def rank_environment(wanted: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, completed by what the platform wants in a rank's, and by traces of crashes."""
    return {"PYTHONFAULTHANDLER": "1", **wanted, **os.environ}


def restore(spec: RankSpec) -> tuple[Settings, LoadedPlugins, EngineConfig]:
    """In a rank process: the same decisions from the same data."""
    settings = Settings.model_validate(spec.settings)
    loaded = load_wiring(spec.wiring)
    return settings, loaded, resolve(settings, loaded, spec.facts, spec.defaults, spec.config)


def choose_loader(loaded: LoadedPlugins, path: Path) -> LoadedPlugin:
    """The first named loader that reads the source's form. Raises `LoaderError` naming those asked."""
    for plugin in loaded.all("model_loader"):
        if plugin.descriptor.accepts(path):
            return plugin
    asked = ", ".join(plugin.wired.part for plugin in loaded.all("model_loader"))
    raise LoaderError(str(path), f"no loader reads this form (asked: {asked})", "name one under [model_loader] use")


def explain(run: Run) -> str:
    """The wiring plan and the memory plan, for `srt explain`; no weight is read."""
    config, facts, model, limits = run.config, run.facts, run.config.model, run.config.limits
    lines = [f"device      {facts.name} ({facts.architecture}), {facts.memory_bytes / 2**30:.1f} GiB"]
    lines += ["", f"wiring plan {run.wiring.digest[:12]}"]
    for plugin in run.wiring.plugins:
        origin = f"{plugin.offer.distribution} {plugin.offer.version}"
        lines.append(f"  {plugin.id:<28} {origin}  contract {plugin.contract}")
    lines += [f"  degraded: {sentence}" for sentence in run.wiring.degraded]
    lines += [f"  passed over: {sentence}" for sentence in config.passed_over if sentence not in run.wiring.degraded]
    lines += ["", f"model       {model.architecture}, {model.dtype}, context {limits.max_context:,} tokens"]
    for choice in config.groups:
        group, layout = choice.group, choice.layout
        heads = f"{group.spec.q_heads}/{group.spec.kv_heads} heads x {group.spec.head_dim}"
        parts = ", prefill ".join(one.wired.part for one in choice.backends)
        where = f"layout {layout.name}, page {layout.page_tokens}, {parts}"
        lines.append(f"  {group.name:<10} {len(group.layers)} layers, {heads}, {where}")
    for one in config.recurrent:
        what = f"{one.spec.heads} heads x {one.spec.head_dim} x {one.spec.state_dim}, {one.plugin.wired.part}"
        lines.append(f"  {one.spec.kind:<10} {len(one.layers)} layers, {what}")
    lines += [f"  {runner.plugin.wired.part}: {len(runner.keys)} captured shapes" for runner in config.runners]
    lines += ["", "memory plan, before any weight is read", *("  " + x for x in config.memory.lines(limits.page_size))]
    return "\n".join([*lines, f"  steps in flight: {limits.depth}", *(f"note: {note}" for note in config.notes)])
