"""What a harness supplies: small models in one storage form, sound and damaged, with the truth about them.

The suite has harnesses for safetensors folders, GGUF files and configs without weights. A plugin for another
form brings its own: an entry point "model_loader.NAME" in the group `HARNESSES` leads to a `Harness` object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from srtkit_conformance.check import Failed
from srtkit_conformance.target import Target

HARNESSES = "srtkit.conformance.v1"
"""Entry-point group of third parties' harnesses."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """One weight under its canonical name. `values` are exactly those stored; None if the loader makes them up.

    `dtype` is that of the tensor the loader yields, and what its index says.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    values: Values | None = None


@dataclass(frozen=True)
class StoredModel:
    """A model on disk. `path` is what the loader is given; `says` is part of what `describe` must return.

    `files` hold the weights; the first `header` bytes of each say what lies where.
    """

    path: Path
    weights: tuple[StoredWeight, ...]
    says: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    header: Mapping[Path, int] = field(default_factory=dict)


class Harness(ABC):
    """Writes models of one form. Every method gets an empty folder and may be called often.

    The last four may return nothing where the form has no such thing.
    """

    made_up = False
    """Whether there are no stored weights: the loader makes any that it is asked for."""

    @abstractmethod
    def write(self, folder: Path) -> StoredModel:
        """A sound model of some kilobytes: matrices and vectors, several dtypes, several files if the form has them."""

    def large(self, folder: Path) -> StoredModel | None:
        """A sound model with one matrix of at least 64 MiB. Its file may consist of holes."""
        return None

    def damaged(self, folder: Path) -> Mapping[str, Path]:
        """What is wrong → a model that must be refused for it. Truncation is not asked for here."""
        return {}

    def outside(self, folder: Path) -> Mapping[str, Path]:
        """What is wrong → a model whose files name weights outside its own folder."""
        return {}

    def pickled(self, folder: Path, trap: Path) -> Mapping[str, Path]:
        """Which file → a model whose weights are a pickle that creates the file `trap` when it is opened."""
        return {}


def harness_for(target: Target) -> Harness:
    """The plugin's own harness, else the first of ours whose model it accepts. Raises `Failed` if there is none."""
    from srtkit_conformance.kits.model_loader.config_form import ConfigOnly
    from srtkit_conformance.kits.model_loader.gguf_form import Gguf
    from srtkit_conformance.kits.model_loader.safetensors_form import Safetensors

    for entry in entry_points(group=HARNESSES, name=f"model_loader.{target.name}"):
        own: Harness = entry.load()
        return own
    # The config alone first: whoever accepts that makes weights up, whatever else lies beside it.
    for ours in (ConfigOnly(), Gguf(), Safetensors()):
        folder = target.folder / f"form-{type(ours).__name__}"
        folder.mkdir()
        if target.descriptor.accepts(ours.write(folder).path):
            return ours
    raise Failed(f"accepts none of the suite's models: bring a harness, an entry point in {HARNESSES}")
