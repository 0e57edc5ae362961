"""Fails if the environment holds CUDA packages, which a plain `pip install torch` drags in on some machines.

Development and CI of the CPU set must not depend on three gigabytes of vendor libraries. Knows package
names only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import distributions

REMEDY = "export TORCH_INDEX=https://download.pytorch.org/whl/cpu; make clean env"


def cuda_packages(names: Iterable[str]) -> list[str]:
    """Those of the distribution names that belong to CUDA, sorted."""
    return sorted({name for name in names if name.lower().replace("_", "-").startswith(("nvidia-", "cuda-"))})


def main() -> int:
    """Prints what was found; 1 if anything was."""
    found = cuda_packages(dist.name for dist in distributions())
    if found:
        print(f"CUDA packages are installed: {', '.join(found)}\n  remedy: {REMEDY}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
