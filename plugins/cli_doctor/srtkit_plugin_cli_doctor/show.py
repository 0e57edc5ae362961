"""`srt plugins show`: where a plugin is from, what it speaks, what its certificate says, and how to switch it on.

Imports the contract and argparse; the rest is imported by `run`, and the plugin itself under core's rules.
"""

from __future__ import annotations

import argparse
import json
import sys

from srtkit.spec.cli import CliCommand
from srtkit.spec.errors import ConfigError
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.versions import CONTRACTS

HELP = "one plugin: origin, contract, options, and the lines that switch it on"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the plugin's place."""
    parser.epilog = "example: srt plugins show attention:torch"
    parser.add_argument("plugin", metavar="KIND:NAME")


def run(arguments: argparse.Namespace) -> int:
    """Prints all of it, the lines of a settings file last."""
    from srtkit.config.init import option_lines
    from srtkit.plugins.loading import load
    from srtkit.plugins.registry import discover
    from srtkit_plugin_cli_doctor.findings import columns

    kind, colon, name = arguments.plugin.partition(":")
    if not colon:
        raise ConfigError("srt plugins show", f'"{kind}" is not of the form KIND:NAME', "see `srt plugins list`")
    registry = discover()
    offer = registry.find(kind, name)
    descriptor = load(offer)
    about = sys.modules[offer.value.partition(":")[0]].__doc__ or "-"
    rows = [
        ("description", about.partition("\n")[0]),
        ("distribution", f"{offer.distribution} {offer.version}"),
        ("entry point", f"{offer.group}: {offer.name} = {offer.value}"),
        ("contract", f"{descriptor.contract}; this core speaks {CONTRACTS[kind].version}"),
    ]
    print(f"{offer.part}\n{columns(rows)}")
    if kind == "cli":
        print(f"\nsrt {name} --help")
        return 0
    for suite in (one for one in registry.of("cli") if one.name == "conformance"):
        command: CliCommand = load(suite)
        parser = argparse.ArgumentParser()
        command.configure(parser)
        command.run(parser.parse_args(["certificate", offer.part]))
    print(f"\n[{kind}]\nuse = {json.dumps(offer.name)}")
    if descriptor.options.model_fields:
        print("\n".join([f"[{kind}.options.{offer.name}]", *option_lines(descriptor.options)]))
    return 0


@hookimpl
def srtkit_cli() -> CliCommand:
    """Offers `srt plugins show`."""
    return CliCommand("plugins-show", HELP, configure, run)
