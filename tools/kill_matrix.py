"""Writes docs/conformance/kill-matrix.md from what `make selftest` has left of each kind in .cache/.

Usage: python -m tools.kill_matrix. Knows the order of kinds and where parts lie; runs no check and no mutant.
"""

from __future__ import annotations

import sys
from pathlib import Path

from srtkit_conformance.catalogue import KINDS, LOADING, SERVER
from tools.dists import ROOT

PARTS = ROOT / ".cache"
PAGE = ROOT / "docs" / "conformance" / "kill-matrix.md"
TITLE = "# Kill matrix\n"
HEAD = f"""<!-- Made by `make selftest`. Edit the mutants and checks in conformance/, not this. -->

{TITLE}
How the [conformance suite](../../conformance/README.md) is proved: each mutant is a plugin with one fault, which its
named killer must find in every fixed seed. What else fails on it is of the first seed.
"""


def page(parts: Path = PARTS) -> str:
    """The sections of all kinds in the suite's order. Raises `FileNotFoundError` if one was not proved."""
    found = [(parts / f"kill-matrix-{kind}.md").read_text("utf-8") for kind in (LOADING, *KINDS, SERVER)]
    return HEAD + "".join(one.removeprefix(TITLE) for one in found)


def main() -> int:
    """Write it; the exit code."""
    try:
        PAGE.write_text(page(), "utf-8")
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: run `make selftest`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
