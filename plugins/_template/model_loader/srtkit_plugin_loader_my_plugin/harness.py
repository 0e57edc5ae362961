"""Models of this form for the conformance suite, sound and damaged, with the truth about them.

Imported by the suite alone, through the entry point in `srtkit.conformance.v1`; a server never sees it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel, StoredWeight
from srtkit_plugin_loader_my_plugin import WEIGHTS

CONFIG = {"architectures": ["Toy"], "hidden_size": 64}


class Trap:
    """Whoever unpickles this leaves the file `path` behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class MyPluginHarness(Harness):
    """Vectors and matrices of every stored dtype in one weights.npz."""

    def write(self, folder: Path) -> StoredModel:
        """A sound model. Its table is the file's end; all before it is under checksums, so a flip anywhere is found."""
        random = np.random.default_rng(7)
        arrays: dict[str, Any] = {
            "model.embed_tokens.weight": random.standard_normal((48, 64)).astype(np.float16),
            "model.layers.0.mlp.up_proj.weight": random.standard_normal((96, 64)).astype(np.float32),
            "model.layers.0.mlp.down_proj.weight": random.standard_normal((64, 96)).astype(np.float16),
            "model.norm.weight": random.standard_normal(64).astype(np.float32),
        }
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
        file = folder / WEIGHTS
        np.savez(file, **arrays)
        weights = [StoredWeight(name, a.shape, a.dtype.name, a.astype(np.float64)) for name, a in arrays.items()]
        return StoredModel(folder, tuple(weights), CONFIG, (file,), {file: file.stat().st_size // 2})

    def damaged(self, folder: Path) -> Mapping[str, Path]:
        """Beside what the suite does to the bytes: a dtype that torch lacks, and a config that is not there."""
        paths = {what: folder / what.replace(" ", "-") for what in ("an unknown dtype", "half a config", "no config")}
        for path in paths.values():
            path.mkdir()
            self.write(path)
        np.savez(paths["an unknown dtype"] / WEIGHTS, odd=np.zeros(3, "complex64"))
        (paths["half a config"] / "config.json").write_text('{"hidden_size": ')
        (paths["no config"] / "config.json").unlink()
        return paths

    def pickled(self, folder: Path, trap: Path) -> Mapping[str, Path]:
        """An array of objects, which numpy stores as a pickle."""
        (folder / "config.json").write_text(json.dumps(CONFIG))
        objects = np.empty(1, object)
        objects[0] = Trap(trap)
        np.savez(folder / WEIGHTS, odd=objects)
        return {WEIGHTS: folder}


HARNESS = MyPluginHarness()
