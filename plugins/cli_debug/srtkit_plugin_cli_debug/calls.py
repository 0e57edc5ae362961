"""Calls of a library's functions with what they must make of their arguments: recorded over a double, played on it.

A plugin ships them as `calls.safetensors` beside its descriptor. Functions are named "module:function"; tensors are
without gaps; an argument that is the same tensor as another stays so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from srtkit.spec.errors import Unsupported
from srtkit_plugin_attention_shadow.compare import limit_of
from srtkit_plugin_cli_debug.player import Machine
from srtkit_plugin_cli_debug.plugins import file_of

FILE = "calls.safetensors"
RETURNED = "return"
"""As the name of a result."""


@dataclass(frozen=True)
class Call:
    """One call: `tensors` and `plain` values by argument, and the results: what is returned, and what it changed."""

    function: str
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]
    results: Mapping[str, Tensor]

    def play(self, function: Callable[..., Any], device: torch.device) -> dict[str, float]:
        """Call a function with copies on a device: the relative L2 error of each result, infinite if not finite."""
        copies = {id(one): one.to(device, copy=True) for one in self.tensors.values()}
        given = {name: copies[id(one)] for name, one in self.tensors.items()}
        found = {RETURNED: function(**given, **self.plain), **given}
        return {name: _error(found[name], wanted) for name, wanted in self.results.items()}


def recording(library: Any, names: Mapping[str, str], log: list[Call], scratch: Collection[str] = ()) -> Any:
    """A dataclass of functions whose calls, by keyword, are noted; `names` are theirs: "module:function" by field.

    `scratch`: arguments that a function writes what it likes to.
    """

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(**given: Any) -> Any:
            noted, returned = record(name, function, given, scratch)
            log.append(noted)
            return returned

        return call

    return replace(library, **{field: noting(name, vars(library)[field]) for field, name in names.items()})


def record(
    name: str, function: Callable[..., Any], given: Mapping[str, Any], scratch: Collection[str] = ()
) -> tuple[Call, Any]:
    """Make a call, and note it; also what it returned."""
    tensors = {key: one for key, one in given.items() if isinstance(one, Tensor)}
    kept: dict[tuple[int, torch.Size], Tensor] = {}
    before = {
        key: kept.setdefault((one.data_ptr(), one.shape), one.clone().contiguous()) for key, one in tensors.items()
    }
    returned = function(**given)
    changed = [key for key, one in tensors.items() if key not in scratch and not _same(one, before[key])]
    results = {key: _dense(tensors[key]) for key in changed}
    if isinstance(returned, Tensor) and not any(returned is one for one in tensors.values()):
        results[RETURNED] = _dense(returned)
    plain = {key: one for key, one in given.items() if key not in tensors}
    return Call(name, before, plain, results), returned


def save(calls: Sequence[Call], path: Path) -> None:
    """Write them to one file."""
    tensors: dict[str, Tensor] = {}
    told = []
    for number, call in enumerate(calls):
        names: dict[int, str] = {}
        for name, one in call.tensors.items():
            tensors.setdefault(names.setdefault(id(one), f"{number}.{name}"), one)
        for name, one in call.results.items():
            tensors[f"{number}.result.{name}"] = one
        arguments = {name: names[id(one)] for name, one in call.tensors.items()}
        told.append({"function": call.function, "tensors": arguments, "plain": call.plain, "results": [*call.results]})
    save_file(tensors, path, {"calls": json.dumps(told)})


def load(path: Path) -> list[Call]:
    """Read them, to the CPU."""
    with safe_open(path, "pt") as file:
        told = json.loads(file.metadata()["calls"])
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    return [
        Call(
            one["function"],
            {name: stored[key] for name, key in one["tensors"].items()},
            {name: tuple(value) if isinstance(value, list) else value for name, value in one["plain"].items()},
            {name: stored[f"{number}.result.{name}"] for name in one["results"]},
        )
        for number, one in enumerate(told)
    ]


def check(part: str, platform: str) -> int:
    """Play the calls that a plugin ships on the library that is installed, and print each error.

    1: a result is too far, or a function is not there. Raises `Unsupported` for a plugin that ships none,
    `DeviceAbsent` without the device.
    """
    file = file_of(part, FILE)
    if file is None:
        raise Unsupported(part, f"ships no {FILE}: it calls no library whose calls are recorded")
    device = Machine(platform).device
    wrong = 0
    for call in load(file):
        module, _, name = call.function.partition(":")
        try:
            off = call.play(vars(import_module(module))[name], device)
        except Exception as error:  # of whatever the library loads, compiles and launches
            wrong += 1
            print(f"failed   {call.function}: {type(error).__name__}: {error}", flush=True)
            continue
        for result, one in off.items():
            limit = limit_of(str(call.results[result].dtype).removeprefix("torch."), 1.0)
            wrong += one > limit
            verdict = "too far" if one > limit else "ok"
            print(f"{verdict:<8} {call.function} {result}: relative error {one:.3g}, limit {limit:.2g}", flush=True)
    return int(wrong > 0)


def _dense(one: Tensor) -> Tensor:
    return one.clone(memory_format=torch.contiguous_format)


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit by bit: what is not used may be NaN."""
    return torch.equal(one.contiguous().view(torch.uint8), other.view(torch.uint8))


def _error(found: Tensor, wanted: Tensor) -> float:
    truth, result = wanted.double(), found.cpu().double()
    if not torch.equal(result.isfinite(), truth.isfinite()):
        return float("inf")
    off = (result - truth).nan_to_num(0.0, 0.0, 0.0).norm()
    return float(off / truth.nan_to_num(0.0, 0.0, 0.0).norm().clamp(min=1e-30))
