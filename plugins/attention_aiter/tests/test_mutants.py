"""Faults of the plugin that must not pass: each is planted, and one step over the double must fail by it."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from plugins.attention_aiter.tests.double import Double, Refused
from plugins.attention_aiter.tests.test_attention_aiter import DECODE, DRAFTS, LATENT, MIXED, case_of, replay, run
from srtkit.spec.attention import LayerHandle
from srtkit_conformance.check import Failed
from srtkit_conformance.kits.attention.harness import Harness
from srtkit_conformance.kits.attention.step import Step
from srtkit_conformance.kits.numeric.gates import Margins
from srtkit_plugin_attention_aiter.table import Routes

Plant = Callable[[Any], Any]
"""From what stands there to what is planted."""
SHORTER = {"rows": ((3, 1), (80, 1), (0, 1)), "leading": 3}
TREE = DRAFTS | {"tree": True}
SHORTER_TREE = TREE | {"rows": ((30, 4), (9, 4))}


@dataclass(frozen=True)
class Mutant:
    """A fault: what is planted at "module.name" or "module.Class.name", and the step that shows it.

    `then`: the step of a later replay, over what the first one recorded. `advance`: lengths grow before `advance`.
    """

    places: tuple[str, ...]
    plant: Plant
    step: dict[str, Any]
    then: dict[str, Any] | None = None
    advance: bool = False


def given(**changes: Any) -> Plant:
    """The function, called with other arguments by keyword."""
    return lambda function: (
        lambda *args, **kwargs: function(*args, **kwargs | {k: v for k, v in changes.items() if k in kwargs})
    )


def never(result: Any = None) -> Plant:
    """The function does nothing."""
    return lambda function: lambda *args, **kwargs: result


def once(function: Any) -> Any:
    """The function works once for each first argument."""
    seen: set[int] = set()

    def call(self: Any, plan: Any, *args: Any) -> None:
        if id(plan) not in seen:
            seen.add(id(plan))
            function(self, plan, *args)

    return call


def _rolled(function: Any) -> Any:
    def call(rows: Any, table: Any, *args: Any, **kwargs: Any) -> None:
        function(rows, table, *args, **kwargs)
        table.copy_(table.roll(1, 1))

    return call


def _seen_by_all(function: Any) -> Any:
    return lambda rows, bits, *args, **kwargs: function(rows, bits.new_full(bits.shape, -1) >> 28, *args, **kwargs)


def _wider(function: Any, more: int) -> Any:
    def call(self: Any, *args: Any) -> None:
        spec = self._spec
        self._spec = dataclasses.replace(spec, window=spec.window + more)
        try:
            function(self, *args)
        finally:
            self._spec = spec

    return call


def _routes(**changes: str) -> Any:
    return Routes(**{"one": "unified", "chain": "unified", "tree": "drafts", "rest": "unified"} | changes)  # type: ignore[arg-type]


def _with_int32(function: Any) -> Any:
    """The table's lengths are replaced in the call that they are for."""

    def call(rows: Any, table: Any, lengths: Any, **kwargs: Any) -> None:
        function(rows, table, lengths, **kwargs)
        lengths.set_(lengths.clone().view(torch.int64))
        lengths.data = lengths.to(torch.int32)

    return call


def _first_only(function: Any) -> Any:
    """Each buffer is written once."""
    seen: set[int] = set()

    def call(rows: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> None:
        if second.data_ptr() not in seen:
            seen.add(second.data_ptr())
            function(rows, first, second, *args, **kwargs)

    return call


def _narrow(kwargs: dict[str, Any]) -> Any:
    return torch.int32 if kwargs["dtype"] == torch.int64 else kwargs["dtype"]


def _swapped(layer: Any) -> Any:
    from srtkit_plugin_attention_aiter.step import slots_of

    whole = slots_of(layer, "latent_rope")[:, None]
    return LayerHandle(layer.index, {"latent": whole[..., 64:], "rope": whole[..., :64]})


MUTANTS = {
    "pages in place of slots": Mutant(("step.list_units",), given(unit=16), MIXED),
    "the table begins a page late": Mutant(("step.tabulate",), _rolled, MIXED | {"sinks": True}),
    "a list without a tail": Mutant(("indices.LIST_PAD", "step.LIST_PAD"), lambda pad: 0, MIXED),
    "a table without columns after it": Mutant(
        ("mha.TABLE_PAD", "indices.TABLE_PAD", "step.TABLE_PAD"), lambda pad: 0, {"rows": ((0, 70),), "sinks": True}
    ),
    "a window of one more": Mutant(("mha.MhaAttention._unified",), lambda f: _wider(f, 1), MIXED | {"window": 24}),
    "a window of one less": Mutant(("mha.MhaAttention._unified",), lambda f: _wider(f, -1), MIXED | {"window": 24}),
    "freed pages in the table": Mutant(("step.tabulate",), given(window=0), MIXED | {"window": 24, "page": 16}),
    "windows go to the decode kernel": Mutant(
        ("mha.routes",), lambda routes: lambda spec: _routes(one="decode"), DECODE | {"window": 24}
    ),
    "fp8 prompts go to the prefill kernel": Mutant(
        ("mha.routes",), lambda routes: lambda spec: _routes(rest="prefill"), MIXED | {"kv_dtype": "fp8"}
    ),
    "int32 lengths": Mutant(("step.tabulate",), _with_int32, MIXED | {"sinks": True}),
    "blocks of 64": Mutant(("mha.DECODE_UNIT",), lambda unit: 64, DECODE | {"page": 64}),
    "tiles of one token": Mutant(
        ("mha.SMALLEST_TILE",), lambda size: 1, {"rows": ((600, 1),), "leading": 1, "page": 1, "sinks": True}
    ),
    "room for one part": Mutant(("mha.DECODE_PART",), lambda part: 1 << 20, {"rows": ((600, 1),), "leading": 1}),
    "the first KV head's scale for all": Mutant(
        ("mha._by_head",), lambda f: lambda scale, heads: f(scale[:1], heads), MIXED | {"kv_dtype": "fp8"}
    ),
    "lists of the first fill": Mutant(("step.list_units",), _first_only, DECODE, SHORTER),
    "tables of the first fill": Mutant(
        ("step.tabulate",), _first_only, DECODE | {"window": 24}, SHORTER | {"window": 24}
    ),
    "nothing in advance": Mutant(("backend.AiterAdvance.advance",), never(), DECODE, advance=True),
    "the rest's queries counted from the step's first": Mutant(("step.torch.sub",), lambda f: lambda x, y: x, MIXED),
    "all drafts see the first four": Mutant(("step.draft_masks",), _seen_by_all, TREE),
    "all drafts see the first four, as rows": Mutant(("step.tabulate_drafts",), _seen_by_all, TREE | {"sinks": True}),
    "masks of the first fill": Mutant(("step.draft_masks",), _first_only, TREE, SHORTER_TREE),
    "slots before drafts of the first fill": Mutant(("step.list_units",), _first_only, TREE, SHORTER_TREE),
    "slots of drafts of the first fill": Mutant(
        ("step.tabulate_drafts",), _first_only, TREE | {"window": 6}, SHORTER_TREE | {"window": 6}
    ),
    "windows of drafts by place": Mutant(("step.tabulate_drafts",), given(window=0), TREE | {"window": 6, "page": 1}),
    "drafts are a chain": Mutant(("mha.routes",), lambda routes: lambda spec: _routes(tree="unified"), TREE),
    "32-bit slots for the extend kernel": Mutant(
        ("step.torch.empty",), lambda f: lambda *a, **k: f(*a, **k | {"dtype": _narrow(k)}), TREE
    ),
    "the stored part with this step's own": Mutant(("step.list_units",), given(stored=False), TREE),
    "latent heads as they are": Mutant(("mla.heads_padded",), lambda f: lambda heads: heads, DECODE | LATENT),
    "longer latent queries than there are kernels for": Mutant(
        ("table.MLA_QUERIES", "mla.MLA_QUERIES"), lambda n: 32, {"rows": ((40, 6),), "leading": 1, **LATENT}
    ),
    "latents by pages": Mutant(("step.list_units",), given(unit=16), DECODE | LATENT),
    "work of the first fill": Mutant(("mla.MlaAttention._plan_work",), once, DECODE | LATENT, SHORTER | LATENT),
    "slots of the first fill": Mutant(("step.list_units",), _first_only, DECODE | LATENT, SHORTER | LATENT),
    "nothing in the advance of latents": Mutant(
        ("backend.AiterAdvance.advance",), never(), DECODE | LATENT, advance=True
    ),
    "rope part before the latent": Mutant(("mla._apart",), lambda f: _swapped, DECODE | LATENT),
}


def planted(monkeypatch: pytest.MonkeyPatch, place: str, plant: Plant) -> None:
    """Exchange what stands at a place of the plugin."""
    module, *path, name = place.split(".")
    owner: Any = importlib.import_module(f"srtkit_plugin_attention_aiter.{module}")
    for one in path:
        owner = getattr(owner, one)
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))


def shows(mutant: Mutant, harness: Harness, double: Double) -> None:
    """Run the step; raises where it is wrong."""
    step = mutant.step
    if step.get("kv_dtype") == "fp8":
        step = step | {"kv_dtype": f"float8_{harness.target.facts.fp8}"}
    if mutant.then is not None:
        replay(harness, double, step, mutant.then)
    elif mutant.advance:
        advanced(harness, step)
    else:
        run(harness, double, **step)


def advanced(harness: Harness, changes: dict[str, Any]) -> None:
    """Fill with short rows, let them grow, advance and attend."""
    case = case_of(harness, **changes)
    step = Step(harness.rig(case), case)
    context = step.batch.context.clone()
    step.batch.context.fill_(1)
    step.fill()
    step.batch.context.copy_(context)
    part = step.rig.backend.parts().advance
    assert part is not None
    part.advance(step.plan)
    step.store()
    step.attend().check(Margins())


QUICK = ("pages in place of slots", "a window of one more", "lists of the first fill", "work of the first fill")
"""The others are for `full`."""
CASES = [
    pytest.param(name, rules, marks=() if name in QUICK else pytest.mark.full)
    for name in MUTANTS
    for rules in ("gfx942 0.1.7", "gfx950 newer")
]


@pytest.mark.parametrize(("name", "double"), CASES, indirect=["double"])
def test_it_is_killed(name: str, harness: Harness, double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    shows(mutant, harness, double)
    for place in mutant.places:
        planted(monkeypatch, place, mutant.plant)
    with pytest.raises((Failed, Refused, AssertionError)):
        shows(mutant, harness, double)
