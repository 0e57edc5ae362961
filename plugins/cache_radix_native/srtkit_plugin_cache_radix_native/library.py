"""The extension module `_radix` (src/module.cpp), which is opened when a cache is built and not before."""

from __future__ import annotations

from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

from srtkit.spec.errors import DeviceAbsent
from srtkit_plugin_cache_radix_native import LIBRARY, PART, REMEDY

NAME = "srtkit_plugin_cache_radix_native._radix"


@lru_cache
def load() -> Any:
    """The module. Raises `DeviceAbsent` when it cannot be opened.

    Calls keep the interpreter's lock: in a step they take microseconds, and to get it back from a busy thread takes
    milliseconds. `reset` and the end of a million nodes take longer, and no step waits for those.
    """
    try:
        spec = spec_from_loader(NAME, ExtensionFileLoader(NAME, str(LIBRARY)))
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:  # another C++ runtime's, or left by another version
        raise DeviceAbsent(PART, f"its library cannot be used: {error}", REMEDY) from error
    return module
