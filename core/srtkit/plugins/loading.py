"""Import one plugin's light module and get its descriptor, under rules 2, 8, 9 and 10.

Every way to fail is a `PluginBroken` or `PluginIncompatible` that names entry point, distribution and
version. Knows one plugin at a time and nothing of settings.
"""

import importlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from typing import Any

import pluggy
from pydantic import BaseModel
from stevedore.named import NamedExtensionManager

from srtkit.plugins.guard import guard
from srtkit.plugins.registry import Offer
from srtkit.spec import hookspecs
from srtkit.spec.errors import PluginBroken, PluginIncompatible, SrtError
from srtkit.spec.versions import CONTRACTS

_log = logging.getLogger(__name__)

# Kind → what its hookspec says that it returns. Imports all kinds, so that the guard covers them, too.
_RETURNS: dict[str, type] = {
    kind: vars(importlib.import_module(f"srtkit.spec.{kind}"))[
        vars(hookspecs)[f"srtkit_{kind}"].__annotations__["return"]
    ]
    for kind in CONTRACTS
}


class _OneEntryPoint(NamedExtensionManager[Any]):
    """stevedore over an entry point that we found: its own list comes from a cache on disk that serves
    stale entries after a re-install and has lost the distribution.
    """

    def __init__(self, offer: Offer) -> None:
        self._entry_points = [EntryPoint(offer.name, offer.value, offer.group)]
        super().__init__(offer.group, [offer.name], on_load_failure_callback=_reraise)

    def list_entry_points(self) -> list[EntryPoint]:
        return self._entry_points


def _reraise(manager: object, entry_point: EntryPoint, error: BaseException) -> None:
    raise error


def load(offer: Offer) -> Any:
    """The plugin's descriptor, of the type that the kind's hookspec names."""
    _log.debug("load %s: %s", offer.part, offer)
    torch_before = "torch" in sys.modules
    with guard(offer.part), calling(offer):
        descriptor = _call_hook(offer, _OneEntryPoint(offer)[offer.name].plugin)
    if not torch_before and "torch" in sys.modules:
        raise _broken(offer, "its light module imports torch", "import torch in the heavy module, from build()")
    _check(offer, descriptor)
    _log.debug("loaded %s: contract %s", offer.part, descriptor.contract)
    return descriptor


@contextmanager
def calling(offer: Offer) -> Iterator[None]:
    """Run a plugin's own code: what it raises becomes `PluginBroken` with the end of the traceback."""
    try:
        yield
    except SrtError:
        raise
    except (Exception, SystemExit) as error:
        frames = "".join(traceback.format_tb(error.__traceback__, -3))
        cause = f"raised {type(error).__name__}: {error} ({offer})\n{frames.rstrip()}"
        raise PluginBroken(offer.part, cause, remedy(offer, error)) from error


def remedy(offer: Offer, error: BaseException) -> str:
    """What helps when a plugin raises what it should not."""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing not in ("", "srtkit", re.split(r"[.:]", offer.value)[0]):
        return f"update or reinstall {offer.distribution}, or pip install {missing}; `pip check` says what it lacks"
    return f"report it to its author with the lines above, or name another plugin under [{offer.kind}]"


def _call_hook(offer: Offer, plugin: object) -> Any:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=offer.part)
    manager.check_pending()  # a misspelt hook is otherwise accepted in silence
    hook = f"srtkit_{offer.kind}"
    caller: pluggy.HookCaller = getattr(manager.hook, hook)
    results = caller()
    if len(results) == 1:
        return results[0]
    problem = "returned None" if caller.get_hookimpls() else "is not implemented, or lacks @hookimpl"
    raise _broken(offer, f"the hook {hook} {problem}")


def _check(offer: Offer, descriptor: Any) -> None:
    """Type, options model and contract version of what the hook returned."""
    expected, ours = _RETURNS[offer.kind], CONTRACTS[offer.kind]
    if not issubclass(type(descriptor), expected):
        raise _broken(offer, f"its hook returned {type(descriptor).__name__}, not {expected.__name__}")
    if offer.kind != "cli" and not issubclass(descriptor.options, BaseModel):
        raise _broken(offer, "its options are no pydantic model")
    version = re.fullmatch(r"(\d+)\.\d+", descriptor.contract)
    if version is None:
        raise _broken(offer, f'declares contract "{descriptor.contract}", which is not major.minor')
    if int(version[1]) != ours.major:
        cause = f"speaks {offer.kind} {descriptor.contract}, this core speaks {ours.version} ({offer})"
        raise PluginIncompatible(offer.part, cause, "install versions of core and plugin that go together")
    if missing := sorted(descriptor.requires - ours.features):
        theirs = f"{', '.join(missing)} of {offer.kind} {descriptor.contract}"
        cause = f"requires {theirs}, this core has {ours.version} ({offer})"
        raise PluginIncompatible(offer.part, cause, "pip install --upgrade srtkit-core")


def _broken(offer: Offer, problem: str, remedy: str = "see docs/plugins.md") -> PluginBroken:
    return PluginBroken(offer.part, f"{problem} ({offer})", remedy)
