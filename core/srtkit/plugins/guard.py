"""Rule 9: a plugin replaces nothing in core or torch. Compares objects, not source.

New attributes, submodules and caches are fine; a function, class or method that is another object than
before is not. Knows no plugin. Called twice for every plugin: copies of namespaces are quicker than a list of members.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType

from srtkit.spec.errors import PluginBroken

_TORCH = ("torch", "torch.nn.functional")
_MEMBERS = (FunctionType, BuiltinFunctionType, property, classmethod, staticmethod, type)


@contextmanager
def guard(part: str) -> Iterator[None]:
    """Run a plugin's code; `PluginBroken` names the plugin and what it replaced meanwhile."""
    before = _spaces()
    yield
    after, replaced = _spaces(), []
    for name, space in before.items():
        now = after.get(name, {})
        changed = (key for key, member in space.items() if now.get(key) is not member and isinstance(member, _MEMBERS))
        replaced += [f"{name}.{key}" for key in changed]
    if replaced:
        cause = f"replaced {', '.join(sorted(replaced)[:3])}{' …' if len(replaced) > 3 else ''} while loading"
        raise PluginBroken(part, cause, "ask its authors for a version that does not patch core or torch")


def _spaces() -> dict[str, dict[str, object]]:
    """Dotted name → what it holds, of every module of core and torch and of the classes that are defined in it."""
    found: dict[str, dict[str, object]] = {}
    for name, module in sys.modules.copy().items():  # other threads import meanwhile
        if name.partition(".")[0] == "srtkit" or name in _TORCH:
            found[name] = dict(vars(module))
            for key, value in found[name].items():
                if isinstance(value, type) and value.__module__ == name:
                    found[f"{name}.{key}"] = dict(vars(value))
    return found
