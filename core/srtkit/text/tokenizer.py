"""Text to token ids and back, from the plain data of a model loader. Knows no model, request or device.

Every decoder of a generative model is one of two things: an alphabet of 256 printable characters (byte-level)
or "▁ for space" with optional byte tokens (SentencePiece). As a table of bytes both decode token by token, which
makes streaming exact and cheap.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import ConfigError, LoaderError, Unsupported
from srtkit.spec.tokenizer import TokenizerData

_PART = "tokenizer"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def token_table(backend: Backend) -> tuple[dict[int, bytes], bool]:
    """(bytes of every token id, whether a whole text loses one leading space).

    Added tokens stand for their own text. Raises `Unsupported` for decoders that do not work token by token.
    """
    byte_level, byte_tokens, strip, replaced = False, False, False, dict[str, str]()
    for step in _steps(backend):
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_tokens = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replaced[old] = new
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strip = True
            case {"type": "Metaspace", "replacement": old, "prepend_scheme": scheme}:
                replaced[old] = " "
                strip = scheme != "never"
            case _:
                cause = f"its decoder step {step.get('type')!r} cannot be decoded token by token"
                raise Unsupported(_PART, cause, "use a model whose tokenizer is byte-level BPE or SentencePiece")

    def to_bytes(piece: str) -> bytes:
        if byte_tokens and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in replaced.items():
            piece = piece.replace(old, new)
        if byte_level and all(char in _ALPHABET for char in piece):
            return bytes([_ALPHABET[char] for char in piece])
        return piece.encode()

    table = {id_: to_bytes(piece) for piece, id_ in backend.get_vocab(with_added_tokens=False).items()}
    return table | {id_: token.content.encode() for id_, token in backend.get_added_tokens_decoder().items()}, strip


def _steps(backend: Backend) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return [{"type": None}]
    # Pickling state is the library's only way to read a decoder without serialising the whole vocabulary.
    decoder = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


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
            # By itself `encode` keeps the interpreter's lock, for seconds where a text is long.
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
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
