"""srtkit: a serving runtime for large language models whose parts are plugins.

`Engine` is the in-process door; it is imported when it is first asked for, and torch with it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srtkit.engine.inprocess import Engine

__version__ = "0.1.0"
__all__ = ["Engine", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        return importlib.import_module("srtkit.engine.inprocess").Engine
    raise AttributeError(f"module 'srtkit' has no attribute {name!r}")
