"""Safetensors folders as Hugging Face publishes them, written byte by byte: no library of the form is trusted."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel, StoredWeight, Values
from srtkit_conformance.kits.model_loader.tiny import CONFIG, weights

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
    }
)
LARGE = (4096, 4096)

Entry = tuple[str, bytes, list[int]]
"""Form, data and shape of one tensor."""


class Safetensors(Harness):
    """Two shards and an index; vectors are F32, matrices take turns."""

    def write(self, folder: Path) -> StoredModel:
        stored, entries = [], {}
        for number, (name, values) in enumerate(weights().items()):
            form = "F32" if values.ndim == 1 else ("BF16", "F16", "F32", "F64")[number % 4]
            data, kept = encoded(values, form)
            stored.append(StoredWeight(name, values.shape, NAMES[form], kept))
            entries[name] = (form, data, list(values.shape))
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
        (folder / "tokenizer.json").write_text(TOKENIZER)
        names = list(entries)
        places = {name: SHARDS[names.index(name) * 2 // len(names)] for name in names}
        headers = {}
        for shard in SHARDS:
            headers[folder / shard] = write_file(
                folder / shard, {name: entries[name] for name in names if places[name] == shard}
            )
        write_index(folder, places)
        return StoredModel(folder, tuple(stored), CONFIG, tuple(headers), headers)

    def large(self, folder: Path) -> StoredModel:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        file = folder / "model.safetensors"
        header = json.dumps({"large": {"dtype": "F32", "shape": LARGE, "data_offsets": [0, 4 * LARGE[0] * LARGE[1]]}})
        with file.open("wb") as out:
            out.write(struct.pack("<Q", len(header)) + header.encode())
            out.truncate(8 + len(header) + 4 * LARGE[0] * LARGE[1])
        return StoredModel(folder, (StoredWeight("large", LARGE, "float32", np.zeros(LARGE)),), CONFIG, (file,))

    def damaged(self, folder: Path) -> Mapping[str, Path]:
        paths = {}
        for number, (what, spoil) in enumerate(DAMAGE.items()):
            paths[what] = folder / str(number)
            paths[what].mkdir()
            self.write(paths[what])
            spoil(paths[what])
        return paths

    def outside(self, folder: Path) -> Mapping[str, Path]:
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        self.write(elsewhere)
        paths = {}
        for number, target in enumerate((f"../elsewhere/{SHARDS[0]}", str(elsewhere / SHARDS[0]))):
            inside = folder / str(number)
            shutil.copytree(elsewhere, inside)
            places = read_index(inside)
            write_index(inside, {name: target if place == SHARDS[0] else place for name, place in places.items()})
            (inside / SHARDS[0]).unlink()
            paths[f"the index names {target.replace(str(folder), '')}"] = inside
        return paths

    def pickled(self, folder: Path, trap: Path) -> Mapping[str, Path]:
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trap)))
        return {"pytorch_model.bin": folder}


class Trap:
    """Whoever unpickles this leaves a file behind."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def encoded(values: Values, form: str) -> tuple[bytes, Values]:
    """The bytes of values in one form, and the values that these bytes are."""
    if form == "BF16":
        bits = values.astype(np.float32).view(np.uint32) >> 16
        return bits.astype("<u2").tobytes(), (bits << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    kept = values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[form])
    return kept.tobytes(), kept.astype(np.float64)


def write_file(path: Path, entries: Mapping[str, Entry], last: int = 0) -> int:
    """One file; returns the size of its header. `last`: bytes by which the header promises too much."""
    table, at = {}, 0
    for name, (form, data, shape) in entries.items():
        table[name] = {"dtype": form, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    header = json.dumps(table).encode()
    if last:
        header = header.replace(b"%d]" % at, b"%d]" % (at + last))
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(data for _, data, _ in entries.values()))
    return 8 + len(header)


def read_index(folder: Path) -> dict[str, str]:
    """Weight → file."""
    places: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return places


def write_index(folder: Path, places: Mapping[str, str]) -> None:
    """Weight → file."""
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict(places)}))


def _without_shard(folder: Path) -> None:
    (folder / SHARDS[1]).unlink()


def _promises_a_weight(folder: Path) -> None:
    write_index(folder, read_index(folder) | {"model.layers.7.mlp.up_proj.weight": SHARDS[0]})


def _weight_twice_in_index(folder: Path) -> None:
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(
        text.replace('"weight_map": {', f'"weight_map": {{"model.norm.weight": "{SHARDS[0]}", ')
    )


def _header_beyond_file(folder: Path) -> None:
    data = (folder / SHARDS[0]).read_bytes()
    (folder / SHARDS[0]).write_bytes(struct.pack("<Q", 1 << 40) + data[8:])


def _data_beyond_file(folder: Path) -> None:
    values = np.ones((8, 8), "<f4")
    write_file(folder / SHARDS[0], {name: ("F32", values.tobytes(), [8, 8]) for name in ("a", "b")}, last=64)
    write_index(folder, {"a": SHARDS[0], "b": SHARDS[0]})


def _shape_beyond_data(folder: Path) -> None:
    write_file(folder / SHARDS[0], {"a": ("F32", bytes(256), [64, 64])})
    write_index(folder, {"a": SHARDS[0]})


def _unknown_dtype(folder: Path) -> None:
    write_file(folder / SHARDS[0], {"a": ("Q9", bytes(256), [8, 8])})
    write_index(folder, {"a": SHARDS[0]})


def _half_a_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"hidden_size": ')


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


DAMAGE = {
    "a shard is missing": _without_shard,
    "the index promises a weight that its shard lacks": _promises_a_weight,
    "the index names a weight twice": _weight_twice_in_index,
    "a header longer than its file": _header_beyond_file,
    "data beyond the end of the file": _data_beyond_file,
    "a shape larger than its data": _shape_beyond_data,
    "a dtype that nobody knows": _unknown_dtype,
    "half a config": _half_a_config,
    "no config": _no_config,
}
