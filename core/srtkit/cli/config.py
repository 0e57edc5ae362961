"""`srt config check | schema | init`: validate a file, describe the format, write a file to start from."""

import argparse
import json
from pathlib import Path
from typing import Any

from srtkit.cli.common import add_actions, add_assume, add_settings, read_settings, run_action
from srtkit.plugins.registry import discover

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt config`."""
    actions = {
        "check": (_check, "validate a file with the plugins it names; loads no model", "my.toml"),
        "schema": (_schema, "print the JSON schema of the file, with the plugins' options", "> srtkit.schema.json"),
        "init": (_init, "print a commented file for a model on this machine", "org/name > my.toml"),
    }
    check, schema, init = add_actions(parser, "check|schema|init", actions)
    add_settings(check)
    add_assume(check)
    schema.add_argument("--config", type=Path, metavar="FILE", help="the plugins of this file (default: official ones)")
    init.add_argument("source", nargs="?", default="org/name", metavar="MODEL", help="what [model] source shall be")
    init.add_argument("--platform", metavar="NAME", help="this platform, whatever is here")
    init.add_argument("--detect", action="store_true", help="ask the installed platforms which is here (the default)")


def _check(arguments: argparse.Namespace) -> int:
    from srtkit.config.prepare import checked_wiring
    from srtkit.config.source import resolve_source

    settings = read_settings(arguments)
    plan, facts, *_ = checked_wiring(settings, arguments.assume, serving=True)
    resolve_source(settings.model.source, online=False)
    print(f"{arguments.config}: fine, {len(plan.plugins)} plugins on {facts.name}; `srt explain` reads the model, too")
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from srtkit.config.init import merged_schema
    from srtkit.config.settings import load_settings
    from srtkit.plugins.catalogue import OFFICIAL
    from srtkit.plugins.loading import load
    from srtkit.plugins.wiring import wire

    registry = discover()
    if arguments.config:
        plan, _, _ = wire(load_settings(arguments.config), registry)
        offers = [plugin.offer for plugin in plan.plugins]
    else:
        offers = [one for one in registry.offers if one.part in OFFICIAL and one.kind != "cli" and one.speaks_ours]
    options: dict[str, dict[str, Any]] = {}
    for offer in offers:
        options.setdefault(offer.kind, {})[offer.name] = load(offer).options
    print(json.dumps(merged_schema(options), indent=2))
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from srtkit.config.init import initial_config

    print(initial_config(arguments.source, discover(), arguments.platform), end="")
    return 0
