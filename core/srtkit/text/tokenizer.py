"""Text to token ids and back, from the plain data of a model loader. Knows no model, request or device."""

from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import ConfigError, LoaderError
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.pieces import token_table

_PART = "tokenizer"


class Tokenizer:
    """One model's tokenizer. Immutable, safe to share between threads.

    `eos_ids` are all ids that end a text; `bos_token` and `eos_token` are texts ("" when there is none).
    `drops_leading_space`: a whole text loses the space at its start.
    """

    def __init__(self, data: TokenizerData) -> None:
        """Raises `LoaderError` when tokenizer.json is damaged, `Unsupported` when it decodes in a way unknown here."""
        text = data.json()
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise LoaderError(_PART, f"tokenizer.json cannot be read: {error}", "fetch the file again") from error
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._bytes, self.drops_leading_space = token_table(backend)
        bos_id, self.bos_token = self._token(data.bos)
        ends = [self._token(token) for token in data.eos]
        self.eos_ids = tuple(dict.fromkeys(id_ for id_, _ in ends if id_ is not None))
        self.eos_token = ends[0][1] if ends else ""
        special = {id_ for id_, token in backend.get_added_tokens_decoder().items() if token.special}
        special.update(self.eos_ids, () if bos_id is None else (bos_id,))
        self._shown = self._bytes | dict.fromkeys(special, b"")
        framed = backend.encode("a", add_special_tokens=True)
        body = [at for at, added in enumerate(framed.special_tokens_mask) if not added] or [len(framed.ids)]
        self._before, self._after = framed.ids[: body[0]], framed.ids[body[-1] + 1 :]

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

    def _token(self, given: int | str | None) -> tuple[int | None, str]:
        """Id and text of a token that is given as either."""
        if isinstance(given, int):
            return given, self._backend.id_to_token(given) or ""
        return (self._backend.token_to_id(given) if given else None), given or ""
