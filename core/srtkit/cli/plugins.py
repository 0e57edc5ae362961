"""`srt plugins list`: what is installed, and what of it a file uses.

`srt plugins show` and `trace` are the doctor's, `new` is the author kit's: `main` sends them there.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from srtkit.cli.common import add_actions, add_settings, read_settings, run_action, table
from srtkit.plugins.catalogue import OFFICIAL
from srtkit.plugins.registry import Offer, Registry, discover
from srtkit.spec.errors import PluginError
from srtkit.spec.versions import CONTRACTS

run = run_action


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `srt plugins`."""
    actions = {
        "list": (_list, "installed plugins, from metadata; imports none without --config", "my.toml --available"),
    }
    (listing,) = add_actions(parser, "list|show|trace|new", actions)
    parser.epilog = f"{parser.epilog}\n\nsrt plugins show|trace|new --help: those come from other distributions"
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.add_argument("--available", action="store_true", help="official plugins that are not installed, too")
    add_settings(listing)


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
