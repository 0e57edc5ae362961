"""A settings file for this machine: which platform is here, and a commented text that names every plugin.
And the JSON schema of any such file, for editors and checks.

Detection imports the light modules of installed platforms and asks each for its device. It never settles
for the CPU beside a visible accelerator.
"""

import json
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import PydanticUndefined

from srtkit.config.settings import Settings, load_settings
from srtkit.plugins.loaded import LoadedPlugins, load_wiring
from srtkit.plugins.loading import calling, load
from srtkit.plugins.registry import Registry
from srtkit.plugins.wiring import wire
from srtkit.spec.errors import DeviceAbsent
from srtkit.spec.versions import CONTRACTS

DEV = Path("/dev")
# Files in /dev that mean an accelerator is here.
ACCELERATORS = ("nvidia[0-9]*", "kfd")


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
    offers = registry.of("platform") or (registry.find("platform", "cpu"),)
    visible = [path for pattern in ACCELERATORS for path in sorted(dev.glob(pattern))]
    for descriptor, offer in sorted(((load(offer), offer) for offer in offers), key=lambda pair: -pair[0].priority):
        with calling(offer):
            here = list(descriptor.probe(descriptor.options()))
        if here and (descriptor.priority > 0 or not visible):
            return offer.name
    if visible:
        cause = f"{visible[0]} is here, but no installed platform finds a device that it can use"
        remedy = "install the platform that drives it, or check its driver; or name the CPU: --set platform.use=cpu"
        raise DeviceAbsent("platform", cause, remedy)
    raise DeviceAbsent("platform", "no installed platform finds its device", "`srt plugins list --available`")


def option_lines(model: type[BaseModel], chosen: Mapping[str, Any] = {}) -> Iterator[str]:
    """A TOML line an option: those in `chosen` are set, the others stand as comments with their defaults."""
    for key, field in model.model_fields.items():
        value = chosen.get(key, field.get_default(call_default_factory=True))
        text = "…" if value in (None, PydanticUndefined) else json.dumps(value, ensure_ascii=False, default=str)
        doc = f"  # {field.description}" if field.description else ""
        yield f"{'' if key in chosen else '# '}{key} = {text}{doc}"


def _lines(settings: Settings, loaded: LoadedPlugins) -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        section: Any = field.annotation
        chosen: dict[str, object] = {"source": settings.model.source} if name == "model" else {}
        if plugins := loaded.all(name) if name in CONTRACTS else ():
            use, *more = (plugin.wired.offer.name for plugin in plugins)
            several = {"use": use, "fallback": more} if name == "attention" else {"use": [use, *more]}
            chosen |= several if more else {"use": use}
        yield f"\n[{name}]"
        yield from (line for line in option_lines(section, chosen) if not line.startswith("# options ="))
        for plugin in plugins:
            if plugin.descriptor.options.model_fields:
                yield f"# [{name}.options.{plugin.wired.offer.name}]"
                yield from option_lines(plugin.descriptor.options)


def merged_schema(options: Mapping[str, Mapping[str, type[BaseModel]]]) -> dict[str, Any]:
    """The schema of a settings file, where `options` maps kind → plugin name → the plugin's model.

    An options table is either a table a plugin or one plugin's own keys, as wiring reads it.
    """
    sections: dict[str, Any] = {}
    for kind, models in options.items():
        tables: dict[str, Any] = {name: (model, None) for name, model in models.items()}
        by_name = create_model(f"{kind}.options", __config__=ConfigDict(extra="forbid"), **tables)
        either: Any = reduce(or_, models.values(), by_name)
        section: Any = Settings.model_fields[kind].annotation
        sections[kind] = (create_model(kind, __base__=section, options=(either, None)), None)
    return create_model("Settings", __base__=Settings, **sections).model_json_schema()
