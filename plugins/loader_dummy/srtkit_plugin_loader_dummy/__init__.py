"""srtkit plugin `model_loader:dummy`: seeded random weights for any config, and a tokenizer of bytes.

For start-up tests and for measuring without a download. Its text is noise, so it must be named: it accepts
whatever has a config, and core asks no loader that neither the file nor the defaults name. No torch here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.model_loader import ModelDescription, ModelLoader, ModelLoaderBuild, ModelLoaderDescriptor
from srtkit_plugin_loader_dummy.description import config_file, describe_config


class DummyOptions(BaseModel):
    """`seed` and `std` make the weights; `tokenizer = "none"` serves token ids only."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, description="the same seed gives the same weights, on any number of ranks")
    std: float = Field(0.02, gt=0, description="deviation of the weights; norms are around 1")
    tokenizer: Literal["bytes", "none"] = Field("bytes", description='id = byte; "none" serves token ids only')


def accepts(path: Path) -> bool:
    """A JSON file, or a folder with a config.json; weights that lie there are not read."""
    return config_file(path).is_file()


def describe(path: Path, options: BaseModel) -> ModelDescription:
    """The config as it is, and a tokenizer made for its vocabulary. Raises `LoaderError` naming the file."""
    assert isinstance(options, DummyOptions)
    return describe_config(path, with_tokenizer=options.tokenizer == "bytes")


def build(request: ModelLoaderBuild) -> ModelLoader:
    """Make the source of weights."""
    from srtkit_plugin_loader_dummy.loader import DummyLoader

    assert isinstance(request.options, DummyOptions)
    return DummyLoader(request.options.seed, request.options.std)


@hookimpl
def srtkit_model_loader() -> ModelLoaderDescriptor:
    """The descriptor of this plugin."""
    return ModelLoaderDescriptor(contract="1.0", options=DummyOptions, accepts=accepts, describe=describe, build=build)
