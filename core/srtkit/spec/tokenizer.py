"""What a model loader says of a model's tokenizer, in the one form that core reads: tokenizer.json.

A loader of another form converts it. Knows no tokenizer library.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenizerData:
    """One model's tokenizer and chat template.

    `json()` returns the text of tokenizer.json, whose post-processor says which texts begin with BOS or end with
    EOS. It is called at most once, while the weights load, so a conversion belongs there; it raises `LoaderError`
    or `Unsupported`. `bos` and `eos` are tokens as ids or as texts: every `eos` ends a text, and the first one is
    the `eos_token` of the chat template. `chat_template` is Jinja source.
    """

    json: Callable[[], str]
    chat_template: str | None = None
    bos: int | str | None = None
    eos: tuple[int | str, ...] = ()
