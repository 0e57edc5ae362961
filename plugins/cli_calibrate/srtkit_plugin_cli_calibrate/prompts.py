"""The texts that a model is calibrated with, from a file. Knows no model."""

from __future__ import annotations

from pathlib import Path

import msgspec

from srtkit.spec.errors import ConfigError


def read_prompts(file: Path) -> list[str]:
    """A text a line, without empty ones; of a .jsonl file a string, or what an object has under "text" or "prompt".

    Raises `ConfigError` naming the line.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), f"cannot be read: {error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    is_json = file.suffix == ".jsonl"
    texts = [_of_json(line, f"{file}:{number}") if is_json else line for number, line in numbered]
    if not texts:
        raise ConfigError(str(file), "has no texts", "write one a line; some dozens of every sort that will be served")
    return texts


def _of_json(line: str, place: str) -> str:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(place, f"is not JSON: {error}") from None
    if isinstance(found, dict):
        found = found.get("text", found.get("prompt"))
    if not isinstance(found, str) or not found:
        raise ConfigError(place, "has no text", 'a string, or {"text": "…"}')
    return found
