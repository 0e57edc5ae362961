"""How far loading is, on a terminal; silent elsewhere."""

import sys


def show_loading(done: int, total: int) -> None:
    """`done` of `total` bytes of weights are there."""
    if sys.stderr.isatty():
        print(f"\rloading weights: {done / total:.0%}", end="\n" if done == total else "", file=sys.stderr, flush=True)
