"""`srt`: finds the sub-command that was typed, imports only that, and words what goes wrong.

Every error is one sentence and an exit code; docs/errors.md lists them all.

Sub-commands are `CliCommand`s: core's own, and those that other distributions offer under
`srtkit.cli.v1`, which are listed from metadata and imported when typed.
"""

import argparse
import errno
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from srtkit.config.hints import did_you_mean
from srtkit.plugins.catalogue import OFFICIAL
from srtkit.plugins.registry import Offer, Registry, discover
from srtkit.spec.cli import CliCommand
from srtkit.spec.errors import PluginDuplicate, SrtError

# Exit codes of what is no `SrtError`.
USAGE = 2
INTERRUPTED = 130
PORT_IN_USE = 80
DISK_FULL = 81
OTHER_OS_ERROR = 82

# Core's sub-commands: the functions `configure` and `run` of `srtkit.cli.<name>`, as `CliCommand` has them.
OWN = {
    "serve": "serve a model over HTTP",
    "plugins": "list, show and trace plugins",
    "config": "check a settings file, write one, or print the schema",
    "explain": "print wiring and memory of a settings file, before any weight is read",
}

HELP = """usage: srt [--help] [--version] COMMAND ...

srtkit serves large language models; everything that depends on hardware or model is a plugin.

commands:
{commands}

examples:
  srt serve --config configs/quickstart.toml     serve what a file describes
  srt serve org/name                             serve a model with settings for this machine
  srt plugins list                               what is installed
  srt config init org/name > my.toml             write a file to start from
  srt COMMAND --help                             arguments of a command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SrtError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone: nothing is left to say, and nowhere to say it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(*os_error(error))


def os_error(error: OSError) -> tuple[str, int]:
    """The sentence and exit code of an operating-system error that nobody closer has explained."""
    if error.errno == errno.EADDRINUSE:
        return f"server.port: {error.strerror}\n  remedy: stop the other program, or --set server.port=0", PORT_IN_USE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        from srtkit.config.source import folders

        file, moved = error.filename, folders().items()
        named = [f"{name} ({path})" for name, path in moved if not file or Path(file).is_relative_to(path)]
        elsewhere = f", or set {' or '.join(named)} to another folder" if named else ""
        return f"disk: it is full{f' at {file}' if file else ''}\n  remedy: free some space there{elsewhere}", DISK_FULL
    return f"system: {error}", OTHER_OS_ERROR


def _fail(sentence: str, code: int) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return code


def _run(argv: list[str]) -> int:
    argv = ["plugin", *argv[1:]] if argv[:2] == ["plugins", "new"] else argv  # which core need not have
    words = 2 if f"cli:{'-'.join(argv[:2])}" in OFFICIAL else 1  # `srt plugins show` is the command plugins-show
    name, rest = ("-".join(argv[:words]), argv[words:]) if argv else ("--help", [])
    if name in ("-h", "--help"):
        others = (one for one in discover().of("cli") if one.name.partition("-")[0] not in OWN)
        rows = [*OWN.items(), *((one.name, _summary(one)) for one in others)]
        print(HELP.format(commands="\n".join(f"  {name:10} {text}" for name, text in rows)), end="")
        return 0 if argv else USAGE
    if name == "--version":
        print(f"srtkit-core {importlib.metadata.version('srtkit-core')}")
        return 0
    command = _find(name, discover())
    if command is None:
        return USAGE
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(f"srt {' '.join(argv[:words])}", description=command.help, formatter_class=form)
    command.configure(parser)
    try:
        arguments = parser.parse_args(rest)
    except SystemExit as end:  # argparse has printed help, or what was wrong
        return int(end.code or 0)
    return command.run(arguments)


def _summary(offer: Offer) -> str:
    """What a command does, by the metadata of its distribution: its module would have to be imported."""
    summary = importlib.metadata.metadata(offer.distribution).json.get("summary", "")
    return f"{summary}, from {offer.distribution} {offer.version}".removeprefix(", ")


def _find(name: str, registry: Registry) -> CliCommand | None:
    """The typed sub-command, imported; None after saying that there is none."""
    others = [offer for offer in registry.of("cli") if offer.name == name]
    if name in OWN:
        if others:
            cause = f"is a command of srtkit-core, and {others[0].distribution} offers it too"
            raise PluginDuplicate(others[0].part, cause, f"pip uninstall {others[0].distribution}")
        module = importlib.import_module(f"srtkit.cli.{name}")
        return CliCommand(name, OWN[name], module.configure, module.run)
    if others or f"cli:{name}" in OFFICIAL:
        from srtkit.plugins.loading import load

        plugin: CliCommand = load(registry.find("cli", name))
        return plugin
    hint = did_you_mean(name, [*OWN, *(offer.name for offer in registry.of("cli"))])
    _fail(f'srt: there is no command "{name}", {hint or "see `srt --help`"}', USAGE)
    return None
