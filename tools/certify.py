"""Runs the conformance suite on plugins of this repository and puts the reports where they carry them.

Usage: python -m tools.certify [KIND:NAME …] [--level N]. A plugin that does not reach the level keeps the
certificate it had. The page about them is made anew by `tools.certificates`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from srtkit_conformance.catalogue import DEVICES
from tools import certificates
from tools.dists import ROOT

PAGE = ROOT / "docs" / "conformance" / "README.md"


def certify(part: str, certificate: Path, level: int | None = None) -> bool:
    """Check a plugin on its device, to `level` or the highest there is; whether it was reached."""
    command = [sys.executable, "-m", "srtkit", "conformance", "run", part]
    command += [] if level is None else ["--level", str(level)]
    command += ["--device", DEVICES[part]] if part in DEVICES else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run([*command, "--report", str(report)], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{done.stdout}{done.stderr}{part} is not certified: exit code {done.returncode}", file=sys.stderr)
            return False
        certificate.write_bytes(report.read_bytes())
    print(f"{part}: {done.stdout.splitlines()[-1]}", flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Certifies plugins, then writes the page; 1 if one does not reach its level."""
    ours = certificates.ours()
    parser = argparse.ArgumentParser(prog="python -m tools.certify", description="Certify plugins of this repository.")
    parser.add_argument("plugin", nargs="*", metavar="KIND:NAME", help=f"default: all: {', '.join(ours)}")
    parser.add_argument("--level", type=int, metavar="N", help="default: the highest that the kind has checks of")
    arguments = parser.parse_args(argv)
    if unknown := [part for part in arguments.plugin if part not in ours]:
        parser.error(f"not among the plugins of this repository that are certified: {', '.join(unknown)}")
    reached = [certify(part, ours[part], arguments.level) for part in arguments.plugin or ours]
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(certificates.page(), "utf-8")
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
