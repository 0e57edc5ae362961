"""A settings file for this machine: which platform is here, and a commented text that names every plugin.

Detection imports the light modules of installed platforms and asks each for its device. It never settles
for the CPU beside a visible accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from srtkit.config.settings import Settings, load_settings
from srtkit.config.toml_text import option_lines
from srtkit.plugins.catalogue import ACCELERATORS, set_line
from srtkit.plugins.loaded import LoadedPlugins, load_wiring
from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Registry
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import DeviceAbsent, PluginNotFound
from srtkit.spec.versions import CONTRACTS

DEV = Path("/dev")


def initial_config(source: str, registry: Registry, platform: str | None = None, dev: Path = DEV) -> str:
    """The text of a settings file that serves `source` on `platform`, or on the one that is detected.

    Raises `DeviceAbsent`, `PluginNotFound` or what wiring the result raises.
    """
    platform = platform or detect_platform(registry, dev)
    settings = load_settings(None, environ={}, base={"model": {"source": source}, "platform": {"use": platform}})
    plan, facts, _ = wire(settings, registry)
    heading = f"# Written by `srt config init` for {facts.count} x {facts.name} ({facts.architecture})."
    return "\n".join([heading, *_lines(settings, load_wiring(plan))]) + "\n"


def detect_platform(registry: Registry, dev: Path = DEV) -> str:
    """The installed platform of highest priority whose device is here."""
    if not (offers := registry.of("platform")):
        registry.find("platform", "cpu")
    descriptors = [(offer, load(offer)) for offer in offers]
    visible = {name: path for pattern, name in ACCELERATORS.items() for path in sorted(dev.glob(pattern))}
    for offer, descriptor in sorted(descriptors, key=lambda pair: -pair[1].priority):
        with calling(offer):
            here = list(descriptor.probe(descriptor.options()))
        if here and (descriptor.priority > 0 or not visible):
            return offer.name
    for name, path in visible.items():
        remedy = "or name the CPU: --set platform.use=cpu"
        if any(offer.name == name for offer in offers):
            cause = f"{path} is here, but the platform finds no device it can use"
            raise DeviceAbsent(f"platform:{name}", cause, f"check the driver with `srt doctor`, {remedy}")
        cause = f"{path} is here, but the platform that drives it is not installed"
        raise PluginNotFound(f"platform:{name}", cause, f"{set_line(name)}, {remedy}")
    raise DeviceAbsent("platform", "no installed platform finds its device", "`srt plugins list --available`")


def _lines(settings: Settings, loaded: LoadedPlugins) -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        chosen: dict[str, object] = {"source": settings.model.source} if name == "model" else {}
        plugins = loaded.all(name) if name in CONTRACTS else ()
        if plugins:
            names = [plugin.wired.name for plugin in plugins]
            chosen["use"] = names[0] if len(names) == 1 else names
        yield f"\n[{name}]"
        yield from (line for line in option_lines(section, chosen) if not line.startswith("# options ="))
        for plugin in plugins:
            if plugin.descriptor.options.model_fields:
                yield f"# [{name}.options.{plugin.wired.name}]"
                yield from option_lines(plugin.descriptor.options)
