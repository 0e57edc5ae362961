"""srtkit plugin `model_loader:safetensors`: a folder in the form that Hugging Face models are published in.

The light module: what is needed to choose the plugin and to describe a model, without torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.model_loader import ModelDescription, ModelLoader, ModelLoaderBuild, ModelLoaderDescriptor
from srtkit_plugin_loader_safetensors.description import describe_folder
from srtkit_plugin_loader_safetensors.folder import is_model_folder


def describe(path: Path, options: BaseModel) -> ModelDescription:
    """Config, tokenizer and generation defaults of the folder. Raises `LoaderError` naming the file."""
    return describe_folder(path)


def build(request: ModelLoaderBuild) -> ModelLoader:
    """Open the weights."""
    from srtkit_plugin_loader_safetensors.loader import SafetensorsLoader

    return SafetensorsLoader(request)


@hookimpl
def srtkit_model_loader() -> ModelLoaderDescriptor:
    """The descriptor of this plugin."""
    return ModelLoaderDescriptor(
        contract="1.0", options=NoOptions, accepts=is_model_folder, describe=describe, build=build
    )
