"""Whose fault an exception is: maps the innermost plugin frame of a traceback to the wired plugin."""

import traceback

from srtkit.plugins.loading import remedy
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
    offers = {plugin.offer.value.partition(":")[0].partition(".")[0]: plugin.offer for plugin in wiring.plugins}
    roots = [str(f.f_globals.get("__name__", "")).partition(".")[0] for f, _ in traceback.walk_tb(error.__traceback__)]
    tail = traceback.extract_tb(error.__traceback__)
    where = f"{tail[-1].filename}:{tail[-1].lineno} in {tail[-1].name}" if tail else "unknown place"
    cause = f"raised {type(error).__name__} {doing}: {error} ({where}"
    for offer in (offers[root] for root in reversed(roots) if root in offers):
        kind = PluginBroken if doing == STARTING else EngineError
        return kind(offer.part, f"{cause}; {offer})", remedy(offer, error))
    return EngineError("engine", f"{cause})", "report it to its author")
