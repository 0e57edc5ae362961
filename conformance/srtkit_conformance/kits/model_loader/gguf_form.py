"""GGUF files, written byte by byte from the format's specification: no library of the form is trusted.

As the usual converter does for architecture "llama", the rows of q and k are stored with the two halves of
every head interleaved, and matrices as Q8_0: blocks of 32 int8 numbers with a float16 scale.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel, StoredWeight, Values
from srtkit_conformance.kits.model_loader.safetensors_form import encoded
from srtkit_conformance.kits.model_loader.tiny import (
    CONFIG,
    FEED_FORWARD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    weights,
)

ALIGNMENT = 32
UINT32, FLOAT32, STRING = 4, 6, 8
FORMS = {"F32": 0, "F16": 1, "Q8_0": 8, "BF16": 30}
DTYPES = {"F32": "float32", "F16": "float16", "Q8_0": "float32", "BF16": "bfloat16"}
LARGE = (4096, 4096)
PARTS = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
}

Entry = tuple[str, int, tuple[int, ...], bytes]
"""Name, number of the form, shape and data of one tensor."""


class Gguf(Harness):
    """One file; vectors are F32, matrices take turns."""

    def write(self, folder: Path) -> StoredModel:
        path, entries, stored = folder / "tiny.gguf", [], []
        for number, (name, values) in enumerate(weights().items()):
            form = "F32" if values.ndim == 1 else ("Q8_0", "BF16", "F16", "F32")[number % 4]
            data, kept = _encoded(interleaved(name, values), form)
            stored.append(StoredWeight(name, values.shape, DTYPES[form], in_order(name, kept)))
            entries.append((gguf_name(name), FORMS[form], values.shape, data))
        header = write_file(path, entries)
        return StoredModel(path, tuple(stored), CONFIG, (path,), {path: header})

    def large(self, folder: Path) -> StoredModel:
        path = folder / "large.gguf"
        size = 4 * LARGE[0] * LARGE[1]
        write_file(path, [("token_embd.weight", FORMS["F32"], LARGE, b"")])
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + size)
        weight = StoredWeight("model.embed_tokens.weight", LARGE, "float32", np.zeros(LARGE))
        return StoredModel(path, (weight,), {"vocab_size": LARGE[0]}, (path,))

    def damaged(self, folder: Path) -> Mapping[str, Path]:
        paths = {}
        for number, (what, spoil) in enumerate(DAMAGE.items()):
            own = folder / str(number)
            own.mkdir()
            paths[what] = self.write(own).path
            data = bytearray(paths[what].read_bytes())
            spoil(data)
            paths[what].write_bytes(data)
        paths |= self._missing_part(folder)
        return paths

    def _missing_part(self, folder: Path) -> Mapping[str, Path]:
        own = folder / "parts"
        own.mkdir()
        whole = self.write(own).path
        first = whole.rename(own / "tiny-00001-of-00002.gguf")
        return {"a part is missing": first}


def gguf_name(name: str) -> str:
    """The format's name of a weight."""
    words = name.split(".")
    part = PARTS[words[-2]]
    return f"blk.{words[2]}.{part}.weight" if "layers" in words else f"{part}.weight"


def interleaved(name: str, values: Values) -> Values:
    """Canonical rows → stored rows: row i of both halves of a head stand together."""
    heads = _interleaved_heads(name)
    if not heads:
        return values
    halves = values.reshape(heads, 2, -1, values.shape[-1])
    return np.ascontiguousarray(np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(values.shape))


def in_order(name: str, stored: Values) -> Values:
    """Stored rows → canonical rows."""
    heads = _interleaved_heads(name)
    if not heads:
        return stored
    pairs = stored.reshape(heads, -1, 2, stored.shape[-1])
    return np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(stored.shape)


def _interleaved_heads(name: str) -> int:
    return HEADS if ".q_proj." in name else KV_HEADS if ".k_proj." in name else 0


def _encoded(values: Values, form: str) -> tuple[bytes, Values]:
    """The bytes of values in one form, and the values that these bytes are."""
    if form != "Q8_0":
        return encoded(values, form)
    blocks = values.reshape(-1, 32)
    scales = (np.abs(blocks).max(axis=1) / 127).astype("<f2")
    quants = np.rint(blocks / scales[:, None].astype(np.float64)).clip(-127, 127).astype(np.int8)
    data = b"".join(scale.tobytes() + row.tobytes() for scale, row in zip(scales, quants, strict=True))
    kept = scales[:, None].astype(np.float32) * quants.astype(np.float32)
    return data, kept.reshape(values.shape).astype(np.float64)


def write_file(path: Path, entries: list[Entry]) -> int:
    """One file; returns the size of its header."""
    metadata = b"".join(_metadata())
    table, body, at = b"", b"", 0
    for name, form, shape, data in entries:
        table += _string(name) + struct.pack("<I", len(shape))
        table += b"".join(struct.pack("<Q", size) for size in reversed(shape)) + struct.pack("<IQ", form, at)
        body += data + bytes(-len(data) % ALIGNMENT)
        at = len(body)
    header = b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(list(_metadata()))) + metadata + table
    header += bytes(-len(header) % ALIGNMENT)
    path.write_bytes(header + body)
    return len(header)


def _metadata() -> list[bytes]:
    numbers = {
        "block_count": LAYERS,
        "context_length": 128,
        "embedding_length": HIDDEN,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
    }
    pairs = [_string("general.architecture") + struct.pack("<I", STRING) + _string("llama")]
    pairs += [_string(f"llama.{key}") + struct.pack("<II", UINT32, value) for key, value in numbers.items()]
    return [*pairs, _string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5)]


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _wrong_magic(data: bytearray) -> None:
    data[:4] = b"FUGG"


def _unknown_version(data: bytearray) -> None:
    data[4:8] = struct.pack("<I", 77)


def _tensor_twice(data: bytearray) -> None:
    at = data.index(b"blk.1.ffn_up.weight")
    data[at : at + 5] = b"blk.0"


def _unknown_tensor(data: bytearray) -> None:
    at = data.index(b"blk.1.ffn_up.weight")
    data[at : at + 12] = b"blk.1.ffn_xx"


def _unknown_form(data: bytearray) -> None:
    _after_name(data, b"blk.1.ffn_up.weight", 2, struct.pack("<I", 4711))


def _data_beyond_file(data: bytearray) -> None:
    _after_name(data, b"blk.1.ffn_up.weight", 2, struct.pack("<IQ", FORMS["F32"], 1 << 30))


def _shape_beyond_data(data: bytearray) -> None:
    _after_name(data, b"output_norm.weight", 0, struct.pack("<Q", 1 << 20))


def _after_name(data: bytearray, name: bytes, dims: int, new: bytes) -> None:
    """Overwrite what follows a tensor's name, its number of dimensions and `dims` of them."""
    at = data.index(name) + len(name) + 4 + 8 * dims
    data[at : at + len(new)] = new


DAMAGE: dict[str, Callable[[bytearray], None]] = {
    "another magic": _wrong_magic,
    "a version that nobody knows": _unknown_version,
    "a tensor twice": _tensor_twice,
    "a tensor that nobody knows": _unknown_tensor,
    "a form that nobody knows": _unknown_form,
    "data beyond the end of the file": _data_beyond_file,
    "a shape larger than its data": _shape_beyond_data,
}
