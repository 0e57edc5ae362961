"""A program that loads one plugin in an interpreter of its own and writes down what it saw.

Runs as `python -m srtkit_conformance.kits.probe ORDER OUT`, both files of JSON. It judges nothing.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.metadata
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pluggy
from pydantic import BaseModel, ValidationError

from srtkit.plugins.guard import guard
from srtkit.plugins.loaded import WiredPlugin, WiringPlan, load_wiring
from srtkit.plugins.loading import load
from srtkit.plugins.registry import Offer, discover
from srtkit.spec import hookspecs
from srtkit.spec.errors import SrtError
from srtkit.spec.facts import DeviceFacts
from srtkit_conformance.capabilities import declared, digest, plain

HEAVY = ("torch", "triton", "transformers", "jax", "tensorflow", "cupy", "numba", "vllm", "sglang")
"""Top-level modules that a light module never imports, nor does anything it calls."""
_ENVIRONMENT: Any = os.environ  # noqa: TID251  (it is watched, not read)
UNKNOWN = "no_such_option"

Seen = dict[str, Any]


def main(order: Path, out: Path) -> None:
    """Read the order, load, write what was seen."""
    asked = json.loads(order.read_bytes())
    sys.path[:] = asked["paths"]
    facts = msgspec.convert(asked["facts"], DeviceFacts)
    offer = discover().find(asked["kind"], asked["name"])
    seen: Seen = {"package": offer.value.partition(":")[0].partition(".")[0]}
    with _reads(seen), _output(seen), _changes(seen):
        seen["import"] = _tried(lambda: _import(offer, seen))
        if not seen["import"]:
            seen["describe"] = _tried(lambda: _describe(offer, facts, seen))
    seen["metadata"] = _metadata(offer)
    seen["heavy"] = sorted({name.partition(".")[0] for name in sys.modules} & set(HEAVY))
    seen["load"] = _tried(lambda: _load(offer, facts, seen))
    out.write_text(json.dumps(seen))


def _metadata(offer: Offer) -> dict[str, Any]:
    dist = importlib.metadata.distribution(offer.distribution)
    names = [entry.name for entry in dist.entry_points if entry.group == offer.group]
    requires = [re.split(r"[^\w.-]", line)[0] for line in dist.requires or ()]
    return {
        "names": names,
        "requires": requires,
        "python": "Requires-Python" in dist.metadata,
    }


def _tried(work: Callable[[], None]) -> str:
    """ "" or what was raised."""
    try:
        work()
    except SrtError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _import(offer: Offer, seen: Seen) -> None:
    started = time.perf_counter()
    seen["patches"] = _tried(lambda: _guarded_import(offer))
    seen["import_seconds"] = time.perf_counter() - started
    importlib.import_module(offer.value.partition(":")[0])  # raises what the guarded import did, unless it patched


def _guarded_import(offer: Offer) -> None:
    with guard(offer.part):
        importlib.import_module(offer.value.partition(":")[0])


def _describe(offer: Offer, facts: DeviceFacts, seen: Seen) -> None:
    """Call the hook and every pure function of the descriptor, by our own hand."""
    module, _, attribute = offer.value.partition(":")
    plugin = importlib.import_module(module)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(getattr(plugin, attribute) if attribute else plugin)
    seen["hooks"] = sorted(caller.name for caller in manager.get_hookcallers(_only(manager)) or ())
    caller: pluggy.HookCaller = getattr(manager.hook, f"srtkit_{offer.kind}")
    (descriptor,) = caller()
    seen["contract"], seen["requires"] = descriptor.contract, sorted(descriptor.requires)
    seen["schema"] = _tried(lambda: _schema(descriptor.options))
    seen["options"] = _tried(lambda: _options(descriptor.options, seen))
    options: BaseModel = descriptor.options()
    seen["needs"] = _tried(lambda: _needs(descriptor, options, seen))
    said = [declared(offer.kind, descriptor, options, facts) for _ in range(2)]
    seen["declared"], seen["declared_again"] = said


def _only(manager: pluggy.PluginManager) -> object:
    (plugin,) = manager.get_plugins()
    return plugin


def _schema(model: type[BaseModel]) -> None:
    json.dumps(model.model_json_schema())


def _options(model: type[BaseModel], seen: Seen) -> None:
    """Defaults, unknown keys, and whether the made options can be changed."""
    seen["swallows"], seen["frozen"] = False, bool(model.model_config.get("frozen"))
    options = model()
    model.model_validate(options.model_dump(mode="json"))
    try:
        model.model_validate({UNKNOWN: 1})
        seen["swallows"] = True
    except ValidationError:
        pass


def _needs(descriptor: Any, options: BaseModel, seen: Seen) -> None:
    before = options.model_dump(mode="json")
    first, second = (plain(tuple(descriptor.needs(options))) for _ in range(2))
    seen["needs_differ"] = first != second
    seen["needs_kinds"] = [need["kind"] for need in first]
    seen["needs_change_options"] = options.model_dump(mode="json") != before


def _load(offer: Offer, facts: DeviceFacts, seen: Seen) -> None:
    """By core's loader: twice, then as a child process does, which verifies it against the plan."""
    said = []
    for _ in range(2):
        descriptor = load(offer)
        said.append(digest(declared(offer.kind, descriptor, descriptor.options(), facts)))
    seen["loads_differ"] = said[0] != said[1]
    options = descriptor.options().model_dump(mode="json")
    load_wiring(WiringPlan((WiredPlugin(offer, descriptor.contract, options),)))


class _Recording(type(_ENVIRONMENT)):  # type: ignore[misc]
    """The environment, writing down what modules of one package read."""

    package: str
    keys_read: list[str]

    def __getitem__(self, key: str) -> str:
        if _reader(sys._getframe(1)).partition(".")[0] == self.package:
            self.keys_read.append(str(key))
        return str(super().__getitem__(key))


def _reader(frame: FrameType | None) -> str:
    """The module that asked, behind os and the mapping's own methods."""
    while frame is not None and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame else ""


@contextmanager
def _reads(seen: Seen) -> Iterator[None]:
    _Recording.package, _Recording.keys_read = seen["package"], []
    kept = type(_ENVIRONMENT)
    _ENVIRONMENT.__class__ = _Recording
    yield
    _ENVIRONMENT.__class__ = kept
    seen["reads"] = sorted(set(_Recording.keys_read))


@contextmanager
def _output(seen: Seen) -> Iterator[None]:
    """Whatever is written to the two standard streams, by Python or below it."""
    kept = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        yield
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in zip((1, 2), kept, strict=True):
            os.dup2(old, descriptor)
        file.seek(0)
        seen["output"] = file.read().decode(errors="replace")


@contextmanager
def _changes(seen: Seen) -> Iterator[None]:
    """State of the process that loading must leave alone."""
    before = _state()
    yield
    after = _state()
    seen["changed"] = sorted(name for name, value in before.items() if after[name] != value)


def _state() -> dict[str, object]:
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "signal handlers": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "the import path": [*sys.path, *sys.meta_path],
        "the root logger": (logging.root.level, list(logging.root.handlers)),
        "builtins": sorted((name, id(value)) for name, value in vars(builtins).items() if name != "_"),
        "exception hooks": (sys.excepthook, threading.excepthook),
        "the start method of processes": multiprocessing.get_start_method(allow_none=True),
        "the working folder": Path.cwd(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
