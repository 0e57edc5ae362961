"""A config file → the description of a model that has no weights: its config and a tokenizer of bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from srtkit.spec.errors import LoaderError
from srtkit.spec.model_loader import ModelDescription
from srtkit.spec.tokenizer import TokenizerData

PART = "model_loader:dummy"
REMEDY = "name a JSON file with a model's config, or a folder with its config.json"
BYTES = 256
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def config_file(path: Path) -> Path:
    """The file that holds the config: `path` itself if it is a JSON file, else config.json in it."""
    return path if path.suffix == ".json" else path / "config.json"


def describe_config(path: Path, with_tokenizer: bool) -> ModelDescription:
    """Raises `LoaderError` when the file is no JSON object, or its vocabulary too small for a tokenizer of bytes."""
    file = config_file(path)
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise LoaderError(PART, f"{file}: cannot be read as JSON: {error}", REMEDY) from error
    if not isinstance(config, dict):
        raise LoaderError(PART, f"{file}: holds no JSON object", REMEDY)
    eos = config.get("eos_token_id")
    return ModelDescription(
        config,
        _byte_tokenizer(file, config) if with_tokenizer else None,
        {} if eos is None else {"eos_token_id": eos},
    )


def _byte_tokenizer(file: Path, config: Mapping[str, Any]) -> TokenizerData:
    """Id = byte below 256; the other ids, which only a model produces, read as their number."""
    size = config.get("vocab_size")
    if not isinstance(size, int) or size < BYTES:
        cause = f"{file}: vocab_size is {size!r}, and a tokenizer of bytes needs {BYTES}"
        raise LoaderError(PART, cause, 'raise vocab_size, or set tokenizer = "none" in [model_loader.options]')
    space = _byte_letters()[ord(" ")]
    tokens = [*_byte_letters(), *(f"{space}{id_}" for id_ in range(BYTES, size))]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "vocab": {token: id_ for id_, token in enumerate(tokens)}, "merges": []},
    }
    eos = config.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return TokenizerData(
        json=partial(json.dumps, tokenizer),
        chat_template=CHAT_TEMPLATE,
        eos=tuple(id_ for id_ in ends if isinstance(id_, int) and 0 <= id_ < size),
    )


def _byte_letters() -> list[str]:
    """The letter of each byte in byte-level vocabularies: itself where printable, else the next one above 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(BYTES)]
