"""What each token id stands for in bytes, read off a tokenizer's decoder.

Every decoder of a generative model is one of two things: an alphabet of 256 printable characters (byte-level)
or "▁ for space" with optional byte tokens (SentencePiece). As a table both decode token by token, which makes
streaming exact and cheap. Knows nothing of requests.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer as Backend

from srtkit.spec.errors import Unsupported

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
                raise Unsupported(
                    "tokenizer",
                    f"its decoder step {step.get('type')!r} cannot be decoded token by token",
                    "use a model whose tokenizer is byte-level BPE or SentencePiece",
                )

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
