"""What a loader says of a model before it reads a weight."""

from __future__ import annotations

import json

from srtkit.spec.model_loader import ModelDescription
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.fresh import can_travel, imported_by
from srtkit_conformance.kits.model_loader.describing import describe_once
from srtkit_conformance.kits.model_loader.opening import new_folder, stored_model
from srtkit_conformance.target import Target

HEAVY = ("torch", "transformers", "safetensors")


@check(
    "model_loader.light",
    level=0,
    clause="model_loader/1.0: accepts and describe import no torch and read no weights",
    explain="The server's processes describe the model and never load it. Import torch in the module that build needs.",
)
def light(target: Target) -> Outcome:
    _, model = stored_model(target)
    arguments = (target.descriptor, target.options, model.path)
    if not can_travel(*arguments):
        return Informational("its functions cannot be imported by name, so a new process cannot call them")
    found = imported_by(describe_once, *arguments, roots=HEAVY)
    expect(not found, "accepts or describe imports heavy modules", observed=sorted(found), limit="none")
    return None


@check(
    "model_loader.accepts",
    level=1,
    clause="model_loader/1.0: accepts says whether this loader reads that form",
    explain="It takes every path and then fails, so core never asks the right loader; or it raises.",
)
def accepts(target: Target) -> None:
    _, model = stored_model(target)
    expect(target.descriptor.accepts(model.path), "does not accept a model of its own form")
    empty, other = new_folder(target, "empty"), target.folder / "notes.txt"
    other.write_text("no model")
    for path in (empty, other, target.folder / "absent", target.folder / "absent.gguf"):
        expect(not target.descriptor.accepts(path), "accepts what is no model", observed=path.name)


@check(
    "model_loader.describe",
    level=1,
    clause="model_loader/1.0: config has Hugging Face keys; describe gives config, tokenizer, generation defaults",
    explain="A key under the form's own name, or a description that changes from call to call: processes compare it.",
)
def describe(target: Target) -> Figures:
    _, model = stored_model(target)
    first, second = (target.descriptor.describe(model.path, target.options) for _ in range(2))
    for key, value in model.says.items():
        said = first.config.get(key)
        expect(said == value, f"the config says something else of {key}", observed=said, limit=value)
    texts = [_text(one) for one in (first, second)]
    expect(texts[0] == texts[1], "describe says something else the second time")
    return {"config_keys": len(first.config)}


def _text(description: ModelDescription) -> str:
    tokenizer = description.tokenizer
    about = None if tokenizer is None else (tokenizer.json(), tokenizer.chat_template, tokenizer.bos, tokenizer.eos)
    return json.dumps([dict(description.config), dict(description.generation), about], sort_keys=True)
