"""Text to token ids and back, from the plain data of a model loader. Knows no model, request or device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import ConfigError, LoaderError
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.gguf import build_gguf
from srtkit.text.pieces import token_table
from srtkit.text.sentencepiece import build_spm, parse_spm, special_tokens

_PART = "tokenizer"
_FLAGS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


def build_tokenizer(data: TokenizerData) -> Tokenizer:
    """Build from tokenizer.json, else a GGUF vocabulary, else tokenizer.model.

    Raises `LoaderError` when there is none, it is damaged or contradicts itself, `Unsupported` for unknown kinds.
    """
    add_bos: bool | None = None
    special: list[AddedToken] = []
    if data.json is not None:
        try:
            backend = Backend.from_str(data.json)
        except Exception as error:  # the library raises plain Exception
            raise LoaderError(_PART, f"tokenizer.json cannot be read: {error}", "fetch the file again") from error
    elif data.gguf is not None:
        backend, add_bos = build_gguf(data.gguf)
        special = special_tokens(data.gguf.tokens, data.gguf.token_types)
    elif data.spm is not None:
        model = parse_spm(data.spm, data.config)
        backend, add_bos = build_spm(model), True
        special = special_tokens(model.pieces, model.types)
    else:
        raise LoaderError(_PART, "the model source has no tokenizer", "add its tokenizer.json or tokenizer.model")
    # Those of the config first: the library keeps the flags of whoever adds a token first, and theirs are complete.
    _add_listed(backend, data.config.get("added_tokens_decoder") or {})
    backend.add_tokens(special)
    return Tokenizer(backend, data, add_bos)


def _add_listed(backend: Backend, listed: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the tokens of tokenizer_config.json that are not known yet; check that they get the ids it states."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for id_, flags in sorted((int(key), value) for key, value in listed.items()):
        text = flags["content"]
        if text not in known:
            backend.add_tokens([AddedToken(**{name: flags[name] for name in _FLAGS if name in flags})])
        if backend.token_to_id(text) != id_:
            cause = f"token {text!r} should have id {id_}, but has {backend.token_to_id(text)}"
            raise LoaderError(_PART, cause, "tokenizer_config.json belongs to another vocabulary; fetch both again")


@final
class Tokenizer:
    """One model's tokenizer. Immutable, safe to share between threads.

    `special_ids` are those that decoding may skip, `eos_ids` all that end a text; `bos_token` and `eos_token`
    are texts ("" when there is none). `drops_leading_space`: a whole text loses the space at its start.
    """

    def __init__(self, backend: Backend, data: TokenizerData, add_bos: bool | None = None) -> None:
        """`add_bos` is what `data` defaults to; None follows the post-processor of `backend`."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._bytes, self.drops_leading_space = token_table(backend)
        self.vocab_size = max(self._bytes, default=-1) + 1
        self.bos_id, self.bos_token = self._resolve(data.bos_id, data.bos_token)
        first_eos = data.eos_ids[0] if data.eos_ids and not data.eos_token else None
        eos_id, self.eos_token = self._resolve(first_eos, data.eos_token)
        self.eos_ids = data.eos_ids or (() if eos_id is None else (eos_id,))
        flagged = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids = frozenset(flagged.union(self.eos_ids, () if self.bos_id is None else (self.bos_id,)))
        self._shown = self._bytes | dict.fromkeys(self.special_ids, b"")
        add_bos = add_bos and self.bos_id is not None if data.add_bos is None else data.add_bos
        before, after = self._post_processing()
        self._before = before if add_bos is None else _switch(before, 0, self.bos_id, add_bos, "BOS")
        self._after = after if data.add_eos is None else _switch(after, len(after), eos_id, data.add_eos, "EOS")

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids. Special tokens written in `text` are recognised.

        `add_special` adds BOS and EOS as the model wants them, unless `text` has them already (a rendered chat
        template may). Raises `ConfigError` for text that is not valid Unicode.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except TypeError as error:
            raise ConfigError(_PART, "the text holds half of a surrogate pair", "send valid Unicode") from error
        if not add_special:
            return ids
        before = self._before if ids[:1] != self._before[:1] else []
        after = self._after if ids[-1:] != self._after[-1:] else []
        return [*before, *ids, *after]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of a whole sequence. Invalid UTF-8 becomes U+FFFD; ids beyond the vocabulary have no text."""
        table = self.table(skip_special)
        text = b"".join([table.get(id_, b"") for id_ in ids]).decode(errors="replace")
        return text.removeprefix(" ") if self.drops_leading_space else text

    def table(self, skip_special: bool) -> Mapping[int, bytes]:
        """The bytes of every id; of special ids none when they are skipped."""
        return self._shown if skip_special else self._bytes

    def token_bytes(self, id_: int) -> bytes:
        """What this token adds to a text, special or not; b"" beyond the vocabulary."""
        return self._bytes.get(id_, b"")

    def token_text(self, id_: int) -> str:
        """`token_bytes` as text; parts of characters become U+FFFD."""
        return self.token_bytes(id_).decode(errors="replace")

    def _resolve(self, id_: int | None, text: str) -> tuple[int | None, str]:
        """Complete a token that is given as id or as text."""
        if id_ is None:
            return (self._backend.token_to_id(text) if text else None), text
        return id_, text or self._backend.id_to_token(id_) or ""

    def _post_processing(self) -> tuple[list[int], list[int]]:
        """What the post-processor of tokenizer.json writes before and after a text."""
        framed = self._backend.encode("a", add_special_tokens=True)
        text = [at for at, added in enumerate(framed.special_tokens_mask) if not added]
        return (framed.ids[: text[0]], framed.ids[text[-1] + 1 :]) if text else (framed.ids, [])


def _switch(ids: list[int], at: int, id_: int | None, wanted: bool, name: str) -> list[int]:
    """`ids` with or without the token `id_`, which is put at position `at`."""
    if wanted and id_ is None:
        raise LoaderError(_PART, f"the model asks for a {name} token but names none", f"set its {name.lower()}_token")
    if wanted == (id_ in ids):
        return ids
    return [*ids[:at], id_, *ids[at:]] if id_ is not None and wanted else [other for other in ids if other != id_]
