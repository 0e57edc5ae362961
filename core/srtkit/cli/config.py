"""`srt config check | schema | init`: validate a file, describe the format, write a file to start from."""

import argparse
import json
from pathlib import Path
from typing import Any

from srtkit.cli.common import add_assume, add_settings, read_settings, run_action
from srtkit.plugins.registry import discover

EPILOG = """examples:
  srt config check my.toml
  srt config init org/name > my.toml
  srt config schema > srtkit.schema.json
"""


run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt config`."""
    parser.epilog = EPILOG
    actions = parser.add_subparsers(required=True, metavar="check|schema|init")
    check = actions.add_parser("check", help="validate a file with the plugins it names; loads no model")
    add_settings(check)
    add_assume(check)
    check.set_defaults(action=_check)
    schema = actions.add_parser("schema", help="print the JSON schema of the file, with the plugins' options")
    schema.add_argument("--config", type=Path, metavar="FILE", help="the plugins of this file (default: official ones)")
    schema.set_defaults(action=_schema)
    init = actions.add_parser("init", help="print a commented file for a model on this machine")
    init.add_argument("source", nargs="?", default="org/name", metavar="MODEL", help="what [model] source shall be")
    init.add_argument("--platform", metavar="NAME", help="this platform, whatever is here")
    init.add_argument("--detect", action="store_true", help="ask the installed platforms which is here (the default)")
    init.set_defaults(action=_init)


def _check(arguments: argparse.Namespace) -> int:
    from srtkit.config.prepare import checked_wiring

    plan, facts, _, _ = checked_wiring(read_settings(arguments), arguments.assume, serving=True)
    print(f"{arguments.config}: fine, {len(plan.plugins)} plugins on {facts.name}")
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    from srtkit.config.schema import merged_schema
    from srtkit.config.settings import load_settings
    from srtkit.plugins.catalogue import OFFICIAL
    from srtkit.plugins.loading import load
    from srtkit.plugins.wiring import wire

    registry = discover()
    if arguments.config:
        plan, _, _ = wire(load_settings(arguments.config), registry)
        offers = [plugin.offer for plugin in plan.plugins]
    else:
        offers = [one for kind in OFFICIAL if kind != "cli" for one in registry.of(kind) if one.name in OFFICIAL[kind]]
    options: dict[str, dict[str, Any]] = {}
    for offer in offers:
        options.setdefault(offer.kind, {})[offer.name] = load(offer).options
    print(json.dumps(merged_schema(options), indent=2))
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from srtkit.config.init import initial_config

    print(initial_config(arguments.source, discover(), arguments.platform), end="")
    return 0
