"""Runs the conformance suite on plugins of this repository and puts the reports where they carry them.

Usage: python -m tools.certify [KIND:NAME …] [--level N] [--again] [--at-once N], or --current, which runs nothing and
says which certificates no longer hold. A certificate that holds and has every check of the level is kept as it is,
and so is that of a plugin that does not reach the level. The page about them is made anew by `tools.certificates`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from srtkit_conformance.catalogue import DEVICES, checks_for
from srtkit_conformance.certificate import standing_of
from srtkit_conformance.commands import NO_DEVICE
from srtkit_conformance.report import read_report
from tools import certificates
from tools.dists import ROOT

EVERYWHERE = ("cpu", "fakedev")
"""Platforms that any machine has; certificates of others are made where their devices are."""
PAGE = ROOT / "docs" / "conformance" / "README.md"
LEVEL = 2
"""What certificates in the repository reach. Level 3, through real servers, takes minutes each."""
LEVELS = {"platform:cpu": 3, "platform:fakedev": 3}
"""Those that reach more. The tour of a platform visits every pair of all other plugins that are installed and run on
it: so these two are level 3 of all of them, in every legal combination of two.
"""


def level_of(part: str) -> int:
    """The level that a plugin of this repository is certified at: at most the highest that its kind has checks of."""
    highest = max(check.level for check in checks_for(part.partition(":")[0]))
    return LEVELS.get(part, min(LEVEL, highest))


def certify(part: str, certificate: Path, level: int = LEVEL) -> bool:
    """Check a plugin on its device; False if it does not reach the level. Without its device here it is passed over."""
    command = [sys.executable, "-m", "srtkit", "conformance", "run", part, "--level", str(level)]
    command += ["--device", DEVICES[part]] if part in DEVICES else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run([*command, "--report", str(report)], capture_output=True, text=True, check=False)
        if done.returncode == NO_DEVICE:
            print(f"{part}: its device is not here", flush=True)
            return True
        if done.returncode:
            print(f"{done.stdout}{done.stderr}{part} is not certified: exit code {done.returncode}", file=sys.stderr)
            return False
        certificate.write_bytes(report.read_bytes())
    print(f"{part}: {done.stdout.splitlines()[-1]}", flush=True)
    return True


def holds(part: str, certificate: Path, level: int = LEVEL) -> bool:
    """Whether the certificate is valid for the files as they are, and has every check up to the level."""
    kind, _, name = part.partition(":")
    if standing_of(kind, name).state != "valid":
        return False
    report = read_report(certificate)
    asked = {one.id for one in checks_for(kind) if one.level <= level}
    return (report.level_reached or 0) >= level and asked <= {one.id for one in report.checks}


def not_current(places: Mapping[str, Path]) -> list[str]:
    """A line for each plugin whose certificate does not hold, or that has none and could. Compares digests only."""
    standings = {part: standing_of(*part.split(":")) for part in places}
    return [
        f"{part}: {found}"
        for part, found in standings.items()
        if found.state != "valid" and (found.state != "none" or device_of(part) in EVERYWHERE)
    ]


def device_of(part: str) -> str:
    """The platform that a plugin is certified on."""
    kind, _, name = part.partition(":")
    return name if kind == "platform" else DEVICES.get(part, "cpu")


def main(argv: Sequence[str] | None = None) -> int:
    """Certifies, then writes the page; 1 if a plugin does not reach its level or, with --current, does not hold it."""
    ours = certificates.ours()
    parser = argparse.ArgumentParser(prog="python -m tools.certify", description="Certify plugins of this repository.")
    parser.add_argument("plugin", nargs="*", metavar="KIND:NAME", help=f"default: all: {', '.join(ours)}")
    more = ", ".join(f"{level} for {part}" for part, level in LEVELS.items())
    parser.add_argument("--level", type=int, metavar="N", help=f"default: {LEVEL}; {more}")
    parser.add_argument("--again", action="store_true", help="also those whose certificate still holds")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="how many side by side (default: 2)")
    parser.add_argument("--current", action="store_true", help="run nothing: which certificates no longer hold")
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.plugin if part not in ours]:
        parser.error(f"not among the plugins of this repository that are certified: {', '.join(unknown)}")
    chosen = {part: ours[part] for part in arguments.plugin or ours}
    if arguments.current:
        lines = not_current(chosen)
        print("\n".join([*lines, f"certificates: {len(lines)} of {len(chosen)} do not hold"]))
        return int(bool(lines))
    levels = {part: level_of(part) if arguments.level is None else arguments.level for part in chosen}
    todo = [part for part, level in levels.items() if arguments.again or not holds(part, ours[part], level)]
    todo.sort(key=lambda part: -levels[part])  # the longest first
    print(f"{len(chosen) - len(todo)} hold, {len(todo)} to be certified", flush=True)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        reached = list(pool.map(lambda part: certify(part, ours[part], levels[part]), todo))
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(certificates.page(), "utf-8")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
