"""`srt serve`: a settings file, or a model with the settings that suit this machine. Starts nothing itself."""

from __future__ import annotations

import argparse
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from srtkit.cli.common import add_settings
from srtkit.plugins.registry import Registry, discover
from srtkit.spec.errors import ConfigError

if TYPE_CHECKING:
    from srtkit.config.settings import Settings

EPILOG = """examples:
  srt serve --config my.toml --set server.port=30001
  srt serve org/name                               a hub id, fetched once
  srt serve ./folder                               config.json, tokenizer.json, *.safetensors
  srt serve model.gguf --set platform.use=cpu      the CPU, though an accelerator is here

A MODEL without a file is served as the file that `srt config init` would write, which is printed.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt serve`."""
    parser.epilog = EPILOG
    parser.add_argument("target", nargs="?", metavar="MODEL|FILE", help="a model source, or a settings file (.toml)")
    add_settings(parser, positional=False)


def run(arguments: argparse.Namespace) -> int:
    """Serve until stopped."""
    registry = discover()
    settings = serve_settings(arguments, registry)
    registry.find("platform", settings.platform.use or "cpu")  # without any set this says what to install
    from srtkit.parallel.launch import serve

    return serve(settings)


def serve_settings(arguments: argparse.Namespace, registry: Registry) -> Settings:
    """The settings that the arguments describe; prints those that were made up for a bare model."""
    from srtkit.config.init import initial_config
    from srtkit.config.settings import load_settings

    target, file, sets = arguments.target, arguments.config, list(arguments.sets)
    if target and target.endswith(".toml"):
        if file:
            raise ConfigError("srt serve", f"got two files, {target} and {file}", "keep one")
        file, target = Path(target), None
    if target:
        sets.insert(0, f"model.source={json.dumps(target)}")
    if file:
        return load_settings(file, sets)
    if not target:
        raise ConfigError("srt serve", "needs a MODEL or a FILE", "srt serve --help shows examples")
    text = initial_config(target, registry, load_settings(None, sets).platform.use)
    print(text)
    return load_settings(None, sets, base=tomllib.loads(text))
