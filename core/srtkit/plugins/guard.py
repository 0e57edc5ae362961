"""Rule 9: a plugin replaces nothing in core or torch. Compares objects, not source.

New attributes, submodules and caches are fine; a function, class or method that is another object than
before is not. Knows no plugin.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType

from srtkit.spec.errors import PluginBroken

_TORCH = ("torch", "torch.nn.functional")
_MEMBERS = (FunctionType, BuiltinFunctionType, property, classmethod, staticmethod, type)


@contextmanager
def guard(part: str) -> Iterator[None]:
    """Run a plugin's code; `PluginBroken` names the plugin and what it replaced meanwhile."""
    before = _members()
    yield
    after = _members()
    replaced = sorted(name for name, member in before.items() if after.get(name) is not member)
    if replaced:
        cause = f"replaced {', '.join(replaced[:3])}{' …' if len(replaced) > 3 else ''} while loading"
        raise PluginBroken(part, cause, "ask its authors for a version that does not patch core or torch")


def _members() -> dict[str, object]:
    """Dotted name → object of everything that must stay what it is."""
    found: dict[str, object] = {}
    for name, module in sys.modules.copy().items():  # other threads import meanwhile
        if name.partition(".")[0] == "srtkit" or name in _TORCH:
            _collect(found, name, vars(module))
    return found


def _collect(found: dict[str, object], prefix: str, space: Mapping[str, object]) -> None:
    for name, value in dict(space).items():
        if isinstance(value, _MEMBERS):
            found[f"{prefix}.{name}"] = value
            if isinstance(value, type) and value.__module__ == prefix:
                _collect(found, f"{prefix}.{name}", vars(value))
