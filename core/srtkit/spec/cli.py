"""The door for sub-commands of other distributions (`srtkit.cli.v1`). Knows argparse's types only.

`srt --help` lists the entry points from metadata and imports none of them; the light module is
imported when its sub-command is typed, and it imports the rest when `run` is called.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CliCommand:
    """One sub-command, returned by the hook `srtkit_cli`.

    `name` equals the entry point's name and is what the user types; `help` is one line.
    `configure` adds arguments to the parser core made for this sub-command; it has no other effect.
    `run` gets the parsed arguments and returns the exit code. An `SrtError` it raises is printed by
    core and ends `srt` with that error's exit code; KeyboardInterrupt is core's, too.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    contract: str = "1.0"
    requires: frozenset[str] = frozenset()
