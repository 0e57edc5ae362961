"""What a descriptor declares, as JSON: for reports, and to see whether it declares the same twice.

Calls only the descriptor's pure functions. Knows where each kind keeps its declarations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from srtkit.spec.capabilities import No, Yes
from srtkit.spec.facts import DeviceFacts

OF_FACTS = ("attention", "recurrent", "graph_runner")
OF_OPTIONS = ("prefix_cache", "kv_store", "transport")
_OTHERS: dict[str, Callable[[Any, DeviceFacts], object]] = {
    "platform": lambda descriptor, facts: {
        "priority": descriptor.priority,
        "defaults": descriptor.defaults(facts),
        "unknown": descriptor.assume("no such architecture"),
    },
    "ops": lambda descriptor, facts: {"names": descriptor.names},
    "routes": lambda descriptor, facts: {},
    "models": lambda descriptor, facts: {"architectures": descriptor.architectures},
    "model_loader": lambda descriptor, facts: {"accepts nothing": descriptor.accepts(Path("/nonexistent/nothing"))},
}


def declared(kind: str, descriptor: Any, options: BaseModel, facts: DeviceFacts) -> Any:
    """Contract, required features and declarations of a descriptor, as JSON values."""
    if kind in OF_FACTS:
        said = descriptor.capabilities(facts)
    elif kind in OF_OPTIONS:
        said = descriptor.capabilities(options)
    else:
        said = _OTHERS[kind](descriptor, facts)
    return {"contract": descriptor.contract, "requires": plain(descriptor.requires), "declared": plain(said)}


def digest(value: Any) -> str:
    """SHA-256 of JSON values, hexadecimal."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def plain(value: object) -> Any:
    """`value` as JSON values: sets sorted, dataclasses as objects, answers as true or their reason."""
    match value:
        case Yes():
            return True
        case No(reason):
            return f"no: {reason}"
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case range():
            return f"{value.start}..{value.stop - 1}" + (f" step {value.step}" if value.step != 1 else "")
        case set() | frozenset():
            return sorted((plain(one) for one in value), key=str)
        case list() | tuple():
            return [plain(one) for one in value]
        case BaseModel():
            return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    return str(value)
