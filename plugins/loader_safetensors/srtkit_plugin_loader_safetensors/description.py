"""The description of a model folder: config, tokenizer, generation defaults. No torch, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from srtkit.spec.model_loader import ModelDescription
from srtkit.spec.tokenizer import TokenizerData
from srtkit_plugin_loader_safetensors.folder import read_json, read_json_if_there, refusal, weight_files
from srtkit_plugin_tokenizer_forms import from_sentencepiece, with_listed_tokens


def describe_folder(folder: Path) -> ModelDescription:
    """Raises `LoaderError` naming the file that is missing or damaged, or the quantisation it cannot undo."""
    config = dict(read_json(folder / "config.json"))
    if _of_kv_only(config.get("quantization_config")):
        del config["quantization_config"]  # nothing that is stored is quantised; its scales are ordinary weights
    if quantisation := config.get("quantization_config"):
        method = quantisation.get("quant_method", "unnamed") if isinstance(quantisation, dict) else quantisation
        cause = f"its weights are quantised ({method}), which this loader cannot undo"
        raise refusal(folder, cause, "name the unquantised model, or a GGUF file of it")
    weight_files(folder)
    generation = read_json_if_there(folder / "generation_config.json")
    return ModelDescription(config, tokenizer_data(folder, config, generation), generation)


def _of_kv_only(quantisation: object) -> bool:
    """Whether it speaks of stored KV and of no weights: compressed-tensors' form with a scheme and no groups."""
    return (
        isinstance(quantisation, dict)
        and bool(quantisation.get("kv_cache_scheme"))
        and not quantisation.get("config_groups")
    )


def tokenizer_data(folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> TokenizerData | None:
    """The tokenizer of tokenizer.json, else of tokenizer.model; None when the folder has neither.

    Whether BOS is added is what tokenizer.json itself says when there is one; tokenizer_config.json decides for
    a tokenizer.model only, as in transformers.
    """
    json_file, spm_file = folder / "tokenizer.json", folder / "tokenizer.model"
    if not json_file.exists() and not spm_file.exists():
        return None
    settings = read_json_if_there(folder / "tokenizer_config.json")
    bos, eos = bos_and_eos(folder, settings, config, generation)
    if json_file.exists():
        listed = settings.get("added_tokens_decoder") or {}
        json = partial(with_listed_tokens, _read_text(json_file), listed)
    else:
        json = partial(from_sentencepiece, spm_file.read_bytes(), settings, bos, eos[0] if eos else None)
    return TokenizerData(json, chat_template(folder, settings), bos, eos)


def bos_and_eos(
    folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[int | str | None, tuple[int | str, ...]]:
    """The token that begins texts and all that end them, the tokenizer's own first.

    A tokenizer_config.json that speaks of BOS decides, even by null. The ids of generation_config.json complete
    those of config.json, which often names the first one only.
    """
    if "bos_token" in settings:
        bos: int | str | None = _text(settings["bos_token"])
    else:
        bos = next(iter(_ids(folder, config.get("bos_token_id"))), None)
    ends = generation.get("eos_token_id")
    ids = _ids(folder, config.get("eos_token_id") if ends is None else ends)
    own = _text(settings.get("eos_token"))
    return bos, ids if own is None else (own, *ids)


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


def _text(token: Any) -> str | None:
    """A token as tokenizer_config.json gives it: text, an object with `content`, or null."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise refusal(path, f"is not UTF-8 text: {error}", "fetch the file again") from error
