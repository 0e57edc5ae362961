"""srtkit plugin `model_loader:gguf`: weights, tokenizer and chat template from GGUF files.

The light module: what is needed to choose the plugin and to describe a model, without numpy or torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.model_loader import ModelDescription, ModelLoader, ModelLoaderBuild, ModelLoaderDescriptor
from srtkit_plugin_loader_gguf.config import model_config
from srtkit_plugin_loader_gguf.source import is_gguf, open_source
from srtkit_plugin_loader_gguf.tokenizer import generation_defaults, tokenizer_data


def describe(path: Path, options: BaseModel) -> ModelDescription:
    """Config, tokenizer and generation defaults from the headers. Raises `LoaderError` naming the file."""
    source = open_source(path)
    return ModelDescription(model_config(source), tokenizer_data(source), generation_defaults(source))


def build(request: ModelLoaderBuild) -> ModelLoader:
    """Open the weights."""
    from srtkit_plugin_loader_gguf.loader import GgufLoader

    return GgufLoader(request)


@hookimpl
def srtkit_model_loader() -> ModelLoaderDescriptor:
    """The descriptor of this plugin."""
    return ModelLoaderDescriptor(contract="1.0", options=NoOptions, accepts=is_gguf, describe=describe, build=build)
