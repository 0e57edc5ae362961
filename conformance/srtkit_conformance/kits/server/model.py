"""The tiny model that a server serves, in the form that a loader reads, and the tokens it must give.

Those are the reference combination's: the reference plugins in one process, one prompt after another, nothing
shared and nothing cut, in float32. Of a loader under test it reads the same weights from a safetensors folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from srtkit.spec.errors import SrtError
from srtkit.spec.model_loader import ModelLoaderDescriptor
from srtkit_conformance.check import SuiteError
from srtkit_conformance.kits.model_loader.config_form import SAYS, ConfigOnly
from srtkit_conformance.kits.model_loader.gguf_form import Gguf
from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel
from srtkit_conformance.kits.model_loader.safetensors_form import Safetensors, write_file

TOKENS = 12
"""How many each prompt is continued by."""
VOCABULARY = 40
"""Ids of prompts are below."""
SHARED = 70
"""How many tokens the first two prompts have in common: more than a page of 64, and than two chunks of 32."""
LENGTHS = (90, 90, 3, 41, 17, 64, 33, 100, 75, 48, 96, 80, 70, 90)
"""Together with the tokens that continue them nearly as many as there is memory for, so that pages change hands."""
UNTIED = {**SAYS, "tie_word_embeddings": False}
"""For made-up weights: with tied ones so small the likeliest token is always the last one."""

SHARP = {"model_loader.options.dummy.std": "0.3"}
"""With the default attention would be so even that hardly anything about it could be seen in the tokens."""

REFERENCE = {
    **SHARP,
    "platform.use": "cpu",
    "attention.use": "torch",
    "prefix_cache.use": "chunk",
    "graph_runner.use": "eager",
    "ops.use": "[]",
    "transport.use": "inproc",
    "model.dtype": "float32",
    "memory.kv_gib": "0.01",
}


RECURRENT = "torch"
"""The reference of recurrent layers, for a model that has some."""


@dataclass(frozen=True)
class ServedModel:
    """`source` is what the server's loader reads, `plain` what the reference's, `loader`, does: the same weights.

    `models` is the plugin that knows the architecture; `recurs`: it has recurrent layers.
    """

    source: Path
    plain: Path
    loader: str
    models: str
    seed: int
    recurs: bool = False

    @cached_property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """From a few tokens to several chunks and pages; the first two begin alike."""
        random = np.random.default_rng([self.seed, 3])
        first, second, *others = (tuple(random.integers(0, VOCABULARY, length).tolist()) for length in LENGTHS)
        return first, first[:SHARED] + second[SHARED:], *others

    @cached_property
    def expected(self) -> tuple[list[int], ...]:
        """What the reference combination continues each prompt with. Raises `SuiteError` if that cannot be had."""
        from srtkit import Engine
        from srtkit.config.settings import load_settings

        sets = {**REFERENCE, "model_loader.use": self.loader, "models.use": self.models}
        if self.recurs:
            sets["recurrent.use"] = RECURRENT
        always: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        try:
            settings = load_settings(None, [f"model.source={self.plain}", *as_words(sets)], environ={})
            with Engine(settings) as engine:
                found = [engine.generate([list(prompt)], **always)[0].token_ids for prompt in self.prompts]
        except SrtError as error:
            raise SuiteError(f"the reference combination does not run: {error}") from error
        return tuple(found)


def as_words(sets: Mapping[str, str]) -> list[str]:
    """As `--set` takes them."""
    return [f"{key}={value}" for key, value in sets.items()]


def for_loader(descriptor: ModelLoaderDescriptor, name: str, folder: Path, seed: int) -> ServedModel | None:
    """One of the suite's own models that a loader reads; None if it reads none of its forms."""
    forms: dict[str, Harness] = {"config": ConfigOnly(), "gguf": Gguf(), "safetensors": Safetensors()}
    for form, harness in forms.items():
        own = folder / form
        own.mkdir(parents=True)
        model = made_up(UNTIED, own) if harness.made_up else harness.write(own).path
        if descriptor.accepts(model):
            return ServedModel(model, model, name, "models", seed)
    return None


def of_harness(descriptor: ModelLoaderDescriptor, harness: Harness, name: str, folder: Path, seed: int) -> ServedModel:
    """The model of a loader's harness, for that loader, and the same weights as safetensors for the reference.

    A loader called `name` that makes weights up is its own reference.
    """
    model = harness.write(new(folder / "own"))
    if harness.made_up:
        path = made_up(UNTIED, folder)
        return ServedModel(path, path, name, "models", seed)
    config = descriptor.describe(model.path, descriptor.options()).config
    return ServedModel(model.path, plain_copy(model, config, new(folder / "plain")), "safetensors", "models", seed)


def plain_copy(model: StoredModel, config: Mapping[str, Any], folder: Path) -> Path:
    """The same weights in a safetensors folder, every number as it is stored."""
    entries = {}
    for weight in model.weights:
        assert weight.values is not None
        entries[weight.name] = ("F64", weight.values.astype("<f8").tobytes(), list(weight.shape))
    write_file(folder / "model.safetensors", entries)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return folder


def made_up(config: Mapping[str, Any], folder: Path) -> Path:
    """A config alone, for loaders that make weights up."""
    path = folder / "served.json"
    path.write_text(json.dumps(dict(config)))
    return path


def new(folder: Path) -> Path:
    """That folder, made."""
    folder.mkdir(parents=True)
    return folder
