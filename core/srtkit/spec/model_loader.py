"""The model loader contract, `model_loader/1.0`: requests for slices of named weights → tensors.

A loader knows a storage form (safetensors, GGUF, dummy) and speaks the canonical weight names of the
model's config (Hugging Face names). It does not know models, ranks or devices. `describe` serves the
processes without torch: config, tokenizer and generation defaults as plain data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from srtkit.spec.capabilities import Descriptor
from srtkit.spec.tokenizer import TokenizerData

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ModelDescription:
    """A model source without its weights.

    `config` has Hugging Face keys ("architectures", "rope_parameters" …); `generation` the keys of
    generation_config.json (sampling defaults, eos_token_id); `tokenizer` is None for models without text.
    """

    config: Mapping[str, Any]
    tokenizer: TokenizerData | None
    generation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WeightInfo:
    """One stored weight under its canonical name. `quantized` names the stored form when it is not plain."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantized: str = ""


@dataclass(frozen=True)
class WeightRequest:
    """A slice of a stored weight: [start, stop) along `dim`, all of it when `dim` is None.

    `shape` is the full shape that the model expects to be stored; () when the asker does not know it.
    """

    name: str
    dim: int | None = None
    start: int = 0
    stop: int = 0
    shape: tuple[int, ...] = ()


class ModelLoader(ABC):
    """An opened source. Not thread-safe."""

    @abstractmethod
    def index(self) -> Sequence[WeightInfo]:
        """What is stored. Reads no weights. Empty when the source makes any weight it is asked for (dummy)."""

    @abstractmethod
    def read(self, requests: Iterable[WeightRequest]) -> Iterator[tuple[WeightRequest, Tensor]]:
        """Yield each request exactly once, in the order that suits the source, dequantised, on the CPU.

        A tensor is valid until the next one is taken; only the requested slice is read where the
        source allows it. Raises `LoaderError` for a missing name, a stored shape that is not the
        request's `shape`, a slice out of range, a damaged or truncated file.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files. Safe to call midway through `read`. Idempotent."""


@dataclass(frozen=True)
class ModelLoaderBuild:
    """What core gives a loader at build: the resolved local path (file or folder) and its options."""

    path: Path
    options: BaseModel
    config: Mapping[str, Any]
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class ModelLoaderDescriptor(Descriptor):
    """What a plugin's hook returns. `accepts` and `describe` import no torch and read no weights.

    `accepts(path)`: whether this loader reads that form; several may, the file's order decides.
    `describe(path, options)`: raises `LoaderError` naming the file when something is missing.
    """

    accepts: Callable[[Path], bool]
    describe: Callable[[Path, BaseModel], ModelDescription]
    build: Callable[[ModelLoaderBuild], ModelLoader]
