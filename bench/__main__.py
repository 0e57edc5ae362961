"""`python -m bench` lists the scripts of this folder, `python -m bench NAME ...` runs one."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

HELPERS = ("__init__", "__main__", "goals", "turns")


def scripts() -> dict[str, str]:
    """Name → first line of the docstring; nothing is imported."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    docs = {file.stem: ast.get_docstring(ast.parse(file.read_text("utf-8"))) for file in files}
    return {name: (doc or "").partition("\n")[0] for name, doc in docs.items() if name not in HELPERS}


def main() -> int:
    """Returns 2 for a name that is no script."""
    known = scripts()
    if len(sys.argv) > 1 and sys.argv[1] in known:
        name = sys.argv.pop(1)
        runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
        return 0
    for name, line in known.items():
        print(f"{name:<16}{line}")
    return 2 if len(sys.argv) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
