"""Which combinations of installed plugins a plugin is served in: legal by core's own `resolve`, pairwise.

The plugin under test and its device stand in all of them. The first is the platform's choice of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from srtkit.config.prepare import prepare
from srtkit.config.settings import load_settings
from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover
from srtkit.spec.errors import SrtError, Unsupported
from srtkit_conformance.catalogue import SERVED
from srtkit_conformance.kits.model_loader.harness import harness_for
from srtkit_conformance.kits.models.configs import served
from srtkit_conformance.kits.server.model import SHARP, ServedModel, as_words, for_loader, made_up, new, of_harness
from srtkit_conformance.kits.server.pairwise import Row, covering
from srtkit_conformance.target import Target

ALWAYS = {
    "model.dtype": "float32",
    "memory.kv_gib": "0.0006",  # some 1,200 tokens of the suite's Llama: pages run out, and are used again
    "scheduler.max_running": "20",
}
NUMBERS = {
    "memory.page_size": ("", "64", "1"),
    "scheduler.chunk_tokens": ("", "32"),
    "scheduler.depth": ("", "2"),
}
"""Settings that meet plugins, too; "" leaves one to core."""

LARGER = {"max_position_embeddings": 512, "vocab_size": 300}
"""Of a model whose own config is for steps of a few tokens; room for a token a byte."""


@dataclass(frozen=True)
class Stage:
    """What can be served: setting → values, the model of each loader, and what is the same in all combinations."""

    factors: Mapping[str, tuple[str, ...]]
    models: Mapping[str, ServedModel]
    fixed: Row

    @property
    def first(self) -> Row:
        """The platform's choice."""
        return {setting: values[0] for setting, values in self.factors.items()}

    def model(self, row: Row) -> ServedModel:
        """The model of a row."""
        return self.models[row["model_loader.use"]]

    def sets(self, row: Row) -> list[str]:
        """All that a row sets, but for the model's source."""
        return as_words({**ALWAYS, **SHARP, **self.fixed, **{key: value for key, value in row.items() if value}})

    def without(self, left_out: frozenset[str]) -> Stage:
        """The same without plugins that cannot serve here, "kind:name" each."""
        kept = {
            setting: tuple(value for value in values if f"{setting.removesuffix('.use')}:{value}" not in left_out)
            for setting, values in self.factors.items()
        }
        return Stage(kept, self.models, self.fixed)

    def rows(self, most: int | None = None, done: Sequence[Row] = ()) -> list[Row]:
        """Legal combinations that hold every pair that `done` does not; at most `most`."""
        return covering(self.factors, lambda row: not why_not(self, row), most, done)


def staged(target: Target, folder: Path) -> Stage:
    """What a plugin can be served with. Raises `Failed` if a loader accepts no model."""
    name = target.origin or target.name
    models = _models(target, name, folder)
    return Stage(_factors(target, name, models), models, {"platform.use": target.facts.platform})


def begun(stage: Stage) -> tuple[Stage, SrtError | None]:
    """Without those of the first choice that refuse, as core passes them over; or why nothing is served."""
    while True:
        for setting, values in stage.factors.items():
            if not values:
                return stage, Unsupported(setting.removesuffix(".use"), "nobody is left: all refuse to be built here")
        error = why_not(stage, stage.first)
        kind, _, name = error.part.partition(":") if error else ("", "", "")
        others = stage.factors.get(f"{kind}.use", ())
        if not isinstance(error, Unsupported) or name not in others or len(others) == 1:
            return stage, error
        stage = stage.without(frozenset({error.part}))


def why_not(stage: Stage, row: Row) -> SrtError | None:
    """Why core would not serve this combination; None if it would. Its part is a plugin, "kind:name", where one is."""
    source = stage.model(row).source
    try:
        prepare(load_settings(None, [f"model.source={source}", *stage.sets(row)], environ={}), serving=True)
    except Unsupported as error:
        return Unsupported(_plugin(row, error.part), error.cause, error.remedy)
    except SrtError as error:
        return error
    return None


def _plugin(row: Row, part: str) -> str:
    """Of a refused setting, "--set transport.use", the plugin that the row names there; else the part itself."""
    setting = part.removeprefix("--set ")
    return f"{setting.removesuffix('.use')}:{row[setting]}" if setting.endswith(".use") and row.get(setting) else part


def _factors(target: Target, name: str, models: Mapping[str, ServedModel]) -> dict[str, tuple[str, ...]]:
    """Setting → values, the platform's choice first. That of the plugin under test has one value."""
    preferred = target.platform_descriptor.defaults(target.facts).plugins
    registry = discover()
    found: dict[str, tuple[str, ...]] = {}
    recurrent = ("recurrent",) if any(model.recurs for model in models.values()) else ()
    for kind in (*SERVED, *recurrent):
        names = [*preferred.get(kind, ()), *(offer.name for offer in registry.of(kind))]
        found[f"{kind}.use"] = (name,) if kind == target.kind else tuple(dict.fromkeys(names))
    found["model_loader.use"] = tuple(models)
    if target.kind != "ops":
        found["ops.use"] += ("[]",)
    del found["platform.use"]
    return found | NUMBERS


def _models(target: Target, name: str, folder: Path) -> dict[str, ServedModel]:
    """Loader → a model that it reads. Of a `models` plugin one with made-up weights, whatever its architecture."""
    if target.kind == "model_loader":
        own = new(folder / "form")
        harness = harness_for(Target(**{**vars(target), "folder": own, "name": name}))
        return {name: of_harness(target.descriptor, harness, name, folder / "model", target.seed)}
    if target.kind == "models":
        config = next(served(target.descriptor))
        recurs = bool(target.descriptor.plan(config.request()).recurrent)
        path = made_up({**config.keys, **LARGER}, new(folder / "model"))
        return {"dummy": ServedModel(path, path, "dummy", name, target.seed, recurs)}
    found = {}
    for offer in discover().of("model_loader"):
        model = for_loader(load(offer), offer.name, folder / offer.name, target.seed)
        if model is not None:
            found[offer.name] = model
    return found
