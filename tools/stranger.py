"""A stranger's plugin against the wheels: made, certified, serving; then broken in ten ways, each met as it must be.

All in a fresh environment and in a git repository of its own in a temporary folder: the checkout gives the wheels and
nothing else. Serves from the wheels alone first, so that the environment is made once for both proofs. `--quick` serves
with the plugin only, and stops at level 1 and at the faults that `srt config check` meets. Needs the wheels of
`make wheels`, and git.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tools.fresh_env import FreshEnv, fresh_env
from tools.serve_from_wheels import QUICKSTART, REQUEST, Failed, install, serve
from tools.stranger_faults import CHECK, FAULTS, SLOW, Fault, lay_out
from tools.workshop import Workshop

SECONDS = 900.0
"""For certifying on a busy machine."""


def certify(shop: Workshop, level: int) -> None:
    """Its own tests, and the suite. Raises Failed."""
    if level > 1:
        shop.met(0, ["python", "-m", "pytest", "-q", str(shop.folder)], " passed", seconds=SECONDS)
    command = ["srt", "conformance", "run", shop.part, "--level", str(level)]
    waivers = ["--waivers", str(shop.folder / "waivers.toml")]
    shop.met(0, [*command, *waivers], f"level {level} reached, level {level} asked", seconds=SECONDS)


def serve_with(shop: Workshop) -> str:
    """The quick-start model with the plugin; returns the completion. Raises Failed."""
    config, log = shop.env.folder / "quickstart.toml", shop.env.folder / "server.log"
    config.write_text(f'{QUICKSTART.read_text("utf-8")}\n[{shop.kind}]\nuse = "{shop.name}"\n', "utf-8")
    shop.met(0, ["srt", "explain", "--config", str(config)], f"page 16, {shop.part}")
    try:
        return serve(shop.env, log, config)
    except Failed as fault:
        raise Failed(f"{fault}\n--- server log ---\n{log.read_text('utf-8', 'replace')}") from None


def break_it(shop: Workshop, faults: Sequence[Fault]) -> None:
    """Every fault, after which the plugin is whole again. Raises Failed."""
    shop.install()
    for fault in faults:
        lay_out(shop)
        shop.met(0, CHECK, f"{CHECK[-1]}: fine")
        with timed(fault.__name__.replace("_", " ")):
            said = fault(shop)
        shop.restore()
        print("".join(f"    {line}\n" for line in said.strip().splitlines()), end="")
    lay_out(shop)
    shop.met(0, CHECK, f"{CHECK[-1]}: fine")


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say what was done and how long it took."""
    started = time.perf_counter()
    yield
    print(f"{time.perf_counter() - started:5.1f} s  {what}", flush=True)


def prove(env: FreshEnv, level: int, faults: Sequence[Fault], *, alone: bool) -> None:
    """All stages; serves without the plugin first if `alone`. Raises Failed at the first that goes as it must not."""
    with timed("a fresh environment from the wheels"):
        install(env, "hatchling", "editables")
    if alone:
        with timed("served from wheels alone"):
            print(f"{REQUEST['prompt']!r} -> {serve(env, env.folder / 'server.log')!r}")
    shop = Workshop(env, "attention", "mychip")
    with timed("made by `srt plugin new`"):
        shop.make()
    with timed("built and installed as a wheel"):
        shop.build()
    with timed(f"certified at level {level}"):
        certify(shop, level)
    with timed("served with it"):
        print(f"{REQUEST['prompt']!r} -> {serve_with(shop)!r}")
    break_it(shop, faults)


def main(argv: Sequence[str]) -> int:
    """Prints every stage; 1 for a fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.stranger", description="Prove that strangers can ship.")
    parser.add_argument("--quick", action="store_true", help="level 1, and the faults that take no time")
    arguments = parser.parse_args(argv)
    level, faults = (1, [fault for fault in FAULTS if fault not in SLOW]) if arguments.quick else (2, FAULTS)
    with fresh_env() as env, timed("in all"):
        try:
            prove(env, level, faults, alone=not arguments.quick)
        except Failed as fault:
            print(fault, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
