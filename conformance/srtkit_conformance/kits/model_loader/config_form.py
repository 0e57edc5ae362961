"""A config without weights, for loaders that make weights up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from srtkit_conformance.kits.model_loader.harness import Harness, StoredModel, StoredWeight
from srtkit_conformance.kits.model_loader.tiny import CONFIG, shapes

SAYS = CONFIG | {"vocab_size": 300}
"""Room for a token a byte."""


class ConfigOnly(Harness):
    """One JSON file."""

    made_up = True

    def write(self, folder: Path) -> StoredModel:
        path = folder / "model.json"
        path.write_text(json.dumps(SAYS))
        return StoredModel(path, tuple(StoredWeight(name, shape) for name, shape in shapes().items()), SAYS)

    def damaged(self, folder: Path) -> Mapping[str, Path]:
        cases = {"half a config": '{"vocab_size": 30', "a list for a config": "[]"}
        paths = {}
        for number, (what, text) in enumerate(cases.items()):
            paths[what] = folder / f"{number}.json"
            paths[what].write_text(text)
        return paths
