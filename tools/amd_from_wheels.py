"""Installs the two packages that configs/mi300x.toml says in a fresh environment, and has the file checked there.

Proves that they bring all that it names, on a machine without an AMD GPU: the card's facts are assumed. pip takes our
distributions from the wheels of `make wheels`, all else from its index. Imports of the checkout are impossible there.
"""

from __future__ import annotations

import sys

from tools.dists import ROOT
from tools.fresh_env import fresh_env
from tools.wheels import DIST

PACKAGES = ("srtkit-core", "srtkit-plugin-attention-aiter")
FILES = {
    "mi300x.toml": "gfx942",
    "mi300x-mla.toml": "gfx942",
    "mi300x-moe.toml": "gfx942",
    "mi355x.toml": "gfx950",
}


def main() -> int:
    """Prints what the check says of each file; 1 if it takes one not."""
    refused = 0
    with fresh_env() as env:
        env.install(f"--find-links={DIST}", *PACKAGES)
        for name, architecture in FILES.items():
            command = ["srt", "config", "check", str(ROOT / "configs" / name), "--assume", architecture]
            done = env.run(command)
            print(done.stdout or done.stderr, end="", file=sys.stderr if done.returncode else sys.stdout)
            refused |= done.returncode != 0
    print(f"pip install {' '.join(PACKAGES)}: {'not enough' if refused else 'enough'}")
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
