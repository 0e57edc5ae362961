"""`srt plugins list | show | trace`: what is installed, what one plugin offers, how a file is wired.

`srt plugins new` is `srt plugin new` of the author kit: `main` sends it there.
"""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from srtkit.cli.common import add_actions, add_assume, add_settings, read_settings, run_action, table
from srtkit.plugins.catalogue import OFFICIAL
from srtkit.plugins.registry import Offer, Registry, discover
from srtkit.spec.errors import ConfigError, PluginError
from srtkit.spec.versions import CONTRACTS

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt plugins`."""
    actions = {
        "list": (_list, "installed plugins, from metadata; imports none without --config", "my.toml --available"),
        "show": (_show, "one plugin: origin, contract, options, and the lines that switch it on", "attention:torch"),
        "trace": (_trace, "every decision and load of wiring a file, with times", "my.toml"),
    }
    listing, show, trace = add_actions(parser, "list|show|trace|new", actions)
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.add_argument("--available", action="store_true", help="official plugins that are not installed, too")
    add_settings(listing)
    show.add_argument("plugin", metavar="KIND:NAME")
    add_settings(trace)
    add_assume(trace)


def _list(arguments: argparse.Namespace) -> int:
    registry = discover()
    faults = list(registry.faults)
    used = _used(arguments, registry, faults) if arguments.config else set()
    listed = {offer: _status(offer, offer in used, arguments.config) for offer in registry.offers}
    if arguments.available:
        listed |= {offer: f"pip install {offer.distribution}" for offer in _not_installed(registry)}
    if arguments.json:
        plugins = [{**asdict(offer), "status": status} for offer, status in listed.items()]
        print(json.dumps({"plugins": plugins, "faults": faults}, indent=2))
        return 0
    rows = [(offer.kind, offer.name, offer.distribution, offer.version, status) for offer, status in listed.items()]
    print(table([("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"), *rows]))
    for fault in faults:
        print(f"warning: {fault}")
    return 0


def _used(arguments: argparse.Namespace, registry: Registry, faults: list[str]) -> set[Offer]:
    from srtkit.plugins.wiring import wire

    try:
        return {plugin.offer for plugin in wire(read_settings(arguments), registry)[0].plugins}
    except PluginError as error:
        faults.append(f"{arguments.config} cannot be wired: {error.part}: {error.cause}")
        return set()


def _status(offer: Offer, used: bool, file: Path | None) -> str:
    if offer.kind not in CONTRACTS:
        return "there is no such kind"
    if not offer.speaks_ours:
        return f"other major: v{offer.major}, this core speaks v{CONTRACTS[offer.kind].major}"
    return f"used by {file}" if used else "installed"


def _not_installed(registry: Registry) -> Iterator[Offer]:
    for part in sorted(OFFICIAL.keys() - {offer.part for offer in registry.offers}):
        kind, _, name = part.partition(":")
        yield Offer(kind, name, CONTRACTS[kind].major, "", OFFICIAL[part], "-")


def _show(arguments: argparse.Namespace) -> int:
    from srtkit.config.init import option_lines
    from srtkit.plugins.loading import load

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
    print(f"{offer.part}\n{table(rows)}")
    if kind == "cli":
        print(f"\nsrt {name} --help")
        return 0
    if any(one.name == "conformance" for one in registry.of("cli")):
        from srtkit.cli.main import main  # the door everybody takes; it has imported this module

        main(["conformance", "certificate", offer.part])
    print(f"\n[{kind}]\nuse = {json.dumps(offer.name)}")
    if descriptor.options.model_fields:
        print("\n".join([f"[{kind}.options.{offer.name}]", *option_lines(descriptor.options)]))
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    from srtkit.plugins.wiring import wire

    settings = read_settings(arguments)
    log, handler = logging.getLogger("srtkit.plugins"), logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(relativeCreated)7.1f ms  %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        registry = discover()
        log.debug("discover: %d entry points", len(registry.offers))
        wire(settings, registry, arguments.assume)
    finally:
        log.removeHandler(handler)
    return 0
