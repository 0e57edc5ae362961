"""What every form gets at last: tokens that are found in texts as they are, BOS and EOS. Knows no form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from srtkit.spec.errors import LoaderError

_PART = "tokenizer"
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


def to_json(tokenizer: Tokenizer, added: list[AddedToken], bos: int | None, eos: int | None) -> str:
    """The text of tokenizer.json for a tokenizer, which gets the tokens `added` and puts texts between `bos` and `eos`.

    None puts nothing on that side. `tokenizer` is changed.
    """
    tokenizer.add_tokens(added)
    frame = {name: id_ for name, id_ in (("BOS", bos), ("EOS", eos)) if id_ is not None}
    if frame:
        tokenizer.post_processor = TemplateProcessing(
            single=[name for name in ("BOS", "$A", "EOS") if name in ("$A", *frame)],
            special_tokens=[
                {"id": name, "ids": [id_], "tokens": [tokenizer.id_to_token(id_) or name]}
                for name, id_ in frame.items()
            ],
        )
    return tokenizer.to_str()


def if_wanted(name: str, token: int | None, stated: bool | None, habit: bool) -> int | None:
    """The token, if texts get it. `stated` is what the source says outright, `habit` what its form does otherwise.

    Raises `LoaderError` when the source asks for a token that it does not name.
    """
    if stated and token is None:
        cause = f"the model asks for a {name} token but names none"
        raise LoaderError(_PART, cause, f"set its {name.lower()}_token")
    return token if (habit if stated is None else stated) else None


def with_listed_tokens(text: str, listed: Mapping[str, Mapping[str, Any]]) -> str:
    """A tokenizer.json with the tokens of tokenizer_config.json (`added_tokens_decoder`) that it lacks.

    Raises `LoaderError` when it is damaged or a token has another id than is listed.
    """
    if not listed:
        return text
    try:
        known = {token["content"]: token["id"] for token in json.loads(text)["added_tokens"]}
        if all(known.get(flags["content"]) == int(id_) for id_, flags in listed.items()):
            return text
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise LoaderError(_PART, f"tokenizer.json cannot be read: {error}", "fetch the file again") from error
    add_listed(tokenizer, listed)
    return tokenizer.to_str()


def add_listed(tokenizer: Tokenizer, listed: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the tokens of tokenizer_config.json that are not known yet; check that they get the ids it states."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for id_, flags in sorted((int(key), value) for key, value in listed.items()):
        text = flags["content"]
        if text not in known:
            tokenizer.add_tokens([AddedToken(**{name: flags[name] for name in _FLAGS if name in flags})])
        if tokenizer.token_to_id(text) != id_:
            cause = f"token {text!r} should have id {id_}, but has {tokenizer.token_to_id(text)}"
            raise LoaderError(_PART, cause, "tokenizer_config.json belongs to another vocabulary; fetch both again")
