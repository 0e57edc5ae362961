"""Model loader `my-plugin`: the descriptor, and the description of a model. Imports no torch, reads no weights.

The form: a folder with config.json (Hugging Face keys), weights.npz, and tokenizer.json where there is text.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import LoaderError
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.model_loader import ModelDescription, ModelLoader, ModelLoaderBuild, ModelLoaderDescriptor
from srtkit.spec.tokenizer import TokenizerData

PART = "model_loader:my-plugin"
WEIGHTS = "weights.npz"


def accepts(path: Path) -> bool:
    """Whether `path` is a folder of this form."""
    return (path / WEIGHTS).is_file()


def describe(path: Path, options: BaseModel) -> ModelDescription:
    """Config and tokenizer as they are stored. Raises `LoaderError` naming the file."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise LoaderError(PART, f"{file} is missing", f"put it beside {WEIGHTS}") from None
    except ValueError as error:
        raise LoaderError(PART, f"{file} is not sound JSON: {error}", "write the file again") from None
    return ModelDescription(config=config, tokenizer=_tokenizer(path / "tokenizer.json", config.get("eos_token_id")))


def _tokenizer(file: Path, eos: int | list[int] | None) -> TokenizerData | None:
    """The tokenizer, whose text is read when it is asked for; None for a model without text."""
    ids = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return TokenizerData(json=lambda: file.read_text("utf-8"), eos=ids) if file.exists() else None


def build(given: ModelLoaderBuild) -> ModelLoader:
    """Open the weights."""
    from srtkit_plugin_loader_my_plugin.loader import MyPluginLoader

    return MyPluginLoader(given.path)


@hookimpl
def srtkit_model_loader() -> ModelLoaderDescriptor:
    """Offers the loader `my-plugin`."""
    return ModelLoaderDescriptor(contract="1.0", options=NoOptions, accepts=accepts, describe=describe, build=build)
