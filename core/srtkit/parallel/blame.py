"""Whose fault an exception is: maps the innermost plugin frame of a traceback to the wired plugin."""

import traceback

from srtkit.plugins.plan import WiringPlan
from srtkit.spec.errors import EngineError, PluginBroken, SrtError

STARTING = "while starting"
STEPPING = "during a step"


def blame(error: BaseException, wiring: WiringPlan, doing: str) -> SrtError:
    """The error as an `SrtError`: unchanged if it is one, else naming the plugin (or core) that raised it.

    `doing` is `STARTING` or `STEPPING`; a plugin that raises while it is built is `PluginBroken`.
    """
    if isinstance(error, SrtError):
        return error
    packages = {plugin.offer.value.partition(":")[0].partition(".")[0]: plugin.part for plugin in wiring.plugins}
    part = "engine"
    tail = traceback.extract_tb(error.__traceback__)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        part = packages.get(root, part)
    where = f"{tail[-1].filename}:{tail[-1].lineno} in {tail[-1].name}" if tail else "unknown place"
    kind = PluginBroken if doing == STARTING and part != "engine" else EngineError
    return kind(part, f"raised {type(error).__name__} {doing}: {error} ({where})", "report it to its author")
