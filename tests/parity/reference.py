"""The fixture that make_reference.py has written, as objects."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.parity.make_reference import FIXTURE

EOS = 2
"""<|im_end|>: the end of a turn, the model's only EOS."""


@dataclass(frozen=True)
class Case:
    """A prompt and its greedy continuation. `prompt` is a text, or the messages of a chat; `ids` are its tokens."""

    name: str
    prompt: str | list[dict[str, str]]
    ids: list[int]
    tokens: list[int]
    text: str
    hidden: npt.NDArray[np.float32]

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is messages."""
        return not isinstance(self.prompt, str)

    @property
    def answer(self) -> list[int]:
        """The tokens up to and with the first EOS; all if there is none."""
        return self.tokens[: self.tokens.index(EOS) + 1] if EOS in self.tokens else self.tokens


def load() -> tuple[dict[str, str], list[Case]]:
    """What it was made by, and the cases."""
    fixture: dict[str, Any] = json.loads(FIXTURE.read_text("utf-8"))
    cases = []
    for one in fixture["cases"]:
        hidden = np.frombuffer(base64.b64decode(one["hidden"]), "<f4")
        cases.append(Case(one["name"], one["prompt"], one["ids"], one["tokens"], one["text"], hidden))
    return fixture["made_by"], cases
