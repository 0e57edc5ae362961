"""The description of a model folder: config, tokenizer material, generation defaults. No torch, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srtkit.spec.model_loader import ModelDescription
from srtkit.spec.tokenizer import TokenizerData
from srtkit_plugin_loader_safetensors.folder import read_json, read_json_if_there, refusal, weight_files


def describe_folder(folder: Path) -> ModelDescription:
    """Raises `LoaderError` naming the file that is missing or damaged, or the quantisation it cannot undo."""
    config = read_json(folder / "config.json")
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "unnamed") if isinstance(quantisation, dict) else quantisation
        cause = f"its weights are quantised ({method}), which this loader cannot undo"
        raise refusal(folder, cause, "name the unquantised model, or a GGUF file of it")
    weight_files(folder)
    generation = read_json_if_there(folder / "generation_config.json")
    return ModelDescription(config, tokenizer_data(folder, config, generation), generation)


def tokenizer_data(folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> TokenizerData | None:
    """The tokenizer's files as they are; None when the folder has none.

    Whether BOS is added is what tokenizer.json itself says when there is one; tokenizer_config.json decides for
    a tokenizer.model only, as in transformers.
    """
    json_file, spm_file = folder / "tokenizer.json", folder / "tokenizer.model"
    if not json_file.exists() and not spm_file.exists():
        return None
    settings = read_json_if_there(folder / "tokenizer_config.json")
    own_form = json_file.exists()
    eos = generation.get("eos_token_id")  # completes that of config.json, which often names the first one only
    return TokenizerData(
        json=_read_text(json_file) if own_form else None,
        spm=None if own_form else spm_file.read_bytes(),
        chat_template=chat_template(folder, settings),
        bos_id=None if "bos_token" in settings else next(iter(_ids(folder, config.get("bos_token_id"))), None),
        bos_token=_text(settings.get("bos_token")),
        eos_ids=_ids(folder, config.get("eos_token_id") if eos is None else eos),
        eos_token=_text(settings.get("eos_token")),
        add_bos=None if own_form else settings.get("add_bos_token"),
        add_eos=None if own_form else settings.get("add_eos_token"),
        config=settings,
    )


def chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else chat_template.json, else that of tokenizer_config.json; None when there is none.

    Of a list of named templates the one called "default" is taken.
    """
    own_file = folder / "chat_template.jinja"
    if own_file.exists():
        return _read_text(own_file)
    template = read_json_if_there(folder / "chat_template.json").get("chat_template", settings.get("chat_template"))
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        if "default" not in named:
            raise refusal(folder, f"none of its chat templates ({', '.join(map(str, named))}) is called 'default'")
        template = named["default"]
    if template is not None and not isinstance(template, str):
        raise refusal(folder, "its chat_template is not text", "fetch the files of the tokenizer again")
    return template


def _ids(folder: Path, value: Any) -> tuple[int, ...]:
    """One id, a list of ids or null → a tuple."""
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(id_, int) for id_ in ids):
        raise refusal(folder, f"{value!r} is no token id", "fetch config.json and generation_config.json again")
    return ids


def _text(token: Any) -> str:
    """A token as tokenizer_config.json gives it: text, an object with `content`, or null."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token if isinstance(token, str) else ""


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise refusal(path, f"is not UTF-8 text: {error}", "fetch the file again") from error
