"""Dispatch, help, errors and exit codes of `srt`, and the door for other distributions' commands."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from srtkit.cli.main import DISK_FULL, INTERRUPTED, OWN, PORT_IN_USE, USAGE
from tests.cli.conftest import Result
from tests.plugins.toys import Site

Srt = Callable[..., Result]

COMMAND = """
from srtkit.spec.cli import CliCommand
from srtkit.spec.hookspecs import hookimpl

def configure(parser):
    parser.add_argument({argument})

def run(arguments):
    {body}

@hookimpl
def srtkit_cli():
    return CliCommand(name="{name}", help="says hello", configure=configure, run=run)
"""


def command(
    site: Site,
    name: str,
    body: str = "print('hello', arguments.name); return 7",
    argument: str = '"--name", default="nobody"',
) -> None:
    site.plugin("cli", name, COMMAND.format(name=name, body=body, argument=argument))


def test_help_lists_own_commands_and_those_of_others_without_importing_them(site: Site, srt: Srt) -> None:
    site.plugin("cli", "hello", "raise AssertionError('imported')")
    done = srt("--help")
    assert done.code == 0
    for name in OWN:
        assert f"\n  {name} " in done.out
    assert "hello      from toy-cli-hello 1.0\n" in done.out
    assert "toy_cli_hello" not in sys.modules
    assert "examples:" in done.out


def test_help_says_what_commands_of_others_do_by_their_metadata(site: Site, srt: Srt) -> None:
    site.plugin("cli", "hello", "raise AssertionError('imported')")
    (metadata,) = site.path.glob("*.dist-info/METADATA")
    metadata.write_text(metadata.read_text() + "Summary: says hello\n")
    assert "\n  hello      says hello, from toy-cli-hello 1.0\n" in srt("--help").out


def test_without_arguments_help_is_a_usage_error(srt: Srt) -> None:
    assert srt().code == USAGE


def test_version(srt: Srt) -> None:
    assert srt("--version").out == f"srtkit-core {importlib.metadata.version('srtkit-core')}\n"


def test_an_unknown_command_gets_a_suggestion(site: Site, srt: Srt) -> None:
    command(site, "hello")
    assert srt("sreve").err == 'error: srt: there is no command "sreve", did you mean "serve"?\n'
    assert 'did you mean "hello"?' in srt("helo").err
    assert srt("helo").code == USAGE


@pytest.mark.parametrize("name", OWN)
def test_every_own_command_has_help_with_its_arguments(srt: Srt, name: str) -> None:
    done = srt(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"usage: srt {name}")


@pytest.mark.parametrize(
    "words",
    [[name] for name in OWN] + [["plugins", "list"]] + [["config", action] for action in ("check", "schema", "init")],
    ids=" ".join,
)
def test_every_help_shows_an_example_of_itself(srt: Srt, words: list[str]) -> None:
    _, examples, after = srt(*words, "--help").out.rpartition("example")
    assert examples
    assert f"srt {' '.join(words)}" in after


def test_both_forms_of_config(srt: Srt) -> None:
    for arguments in (["--config", "no.toml"], ["--config=no.toml"]):
        done = srt("serve", *arguments)
        assert done.code == 10
        assert done.err.startswith("error: no.toml: cannot be read")


def test_a_command_of_another_distribution_runs_and_its_code_is_returned(site: Site, srt: Srt) -> None:
    command(site, "hello")
    assert srt("hello", "--name", "you") == Result(7, "hello you\n", "")


def test_a_command_is_imported_only_when_it_is_typed(site: Site, srt: Srt) -> None:
    command(site, "hello")
    site.plugin("cli", "other", "raise AssertionError('imported')")
    assert srt("hello").code == 7
    assert srt("other").code == 22


@pytest.mark.parametrize("name", ["plugin", "chat"])
def test_an_official_command_that_is_not_installed_says_how_to_get_it(srt: Srt, name: str) -> None:
    done = srt(name, "new")
    assert done.code == 21
    assert done.err.startswith(f"error: cli:{name}: is not installed\n  remedy: pip install srtkit-")


def test_plugins_new_is_the_author_kits(site: Site, srt: Srt) -> None:
    assert "pip install srtkit-conformance" in srt("plugins", "new", "attention", "mychip").err
    command(site, "plugin", "print(arguments.words); return 7", '"words", nargs="+"')
    assert srt("plugins", "new", "attention", "mychip") == Result(7, "['new', 'attention', 'mychip']\n", "")


def test_rule_5_two_distributions_of_one_command_are_an_error_only_when_it_is_typed(site: Site, srt: Srt) -> None:
    command(site, "hello")
    site.add("rival", {"srtkit.cli.v1": {"hello": "toy_rival"}}, {"toy_rival": ""})
    assert srt("--help").code == 0
    done = srt("hello")
    assert done.code == 24
    assert "rival 1.0" in done.err
    assert "toy-cli-hello 1.0" in done.err


def test_rule_5_a_command_of_core_cannot_be_taken(site: Site, srt: Srt) -> None:
    command(site, "serve")
    done = srt("serve")
    assert done.code == 24
    assert "srtkit-core" in done.err
    assert "toy-cli-serve" in done.err


@pytest.mark.parametrize(
    ("body", "code", "err"),
    [
        ("from srtkit.spec.errors import OutOfMemory; raise OutOfMemory('pool', 'is small', 'add')", 40,
         "error: pool: is small\n  remedy: add\n"),
        ("raise KeyboardInterrupt", INTERRUPTED, "stopped by Ctrl-C\n"),
        (f"raise OSError({errno.EADDRINUSE}, 'in use')", PORT_IN_USE, None),
        (f"raise OSError({errno.ENOSPC}, 'full', '/x')", DISK_FULL, None),
    ],
    ids=["SrtError", "Ctrl-C", "port in use", "disk full"],
)  # fmt: skip
def test_errors_are_one_message_and_an_exit_code(site: Site, srt: Srt, body: str, code: int, err: str | None) -> None:
    command(site, "fails", body)
    done = srt("fails")
    assert done.code == code
    assert done.out == ""
    assert done.err == err if err else done.err.count("\n") == 2


def test_an_error_that_nobody_expects_keeps_its_traceback(site: Site, srt: Srt) -> None:
    command(site, "fails", "raise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        srt("fails")


def test_a_real_port_in_use(site: Site, srt: Srt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command(site, "binds", f"import socket; socket.create_server(('127.0.0.1', {taken.getsockname()[1]}))")
        done = srt("binds")
    assert done.code == PORT_IN_USE
    assert "--set server.port=0" in done.err


def test_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "srtkit", "--help"]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_help_and_list_import_neither_torch_nor_pydantic_nor_a_plugin(site: Site) -> None:
    code = """
        import json, sys
        from contextlib import redirect_stdout
        from io import StringIO
        from srtkit.cli.main import main
        with redirect_stdout(StringIO()):
            codes = [main(["--help"]), main(["--version"]), main(["plugins", "list"])]
        heavy = ("torch", "transformers", "pydantic", "fastapi", "srtkit_plugin_", "numpy")
        print(json.dumps([codes, [m for m in sys.modules if m.startswith(heavy)]]))
    """
    assert site.answer(code) == [[0, 0, 0], []]


def test_python_m_srtkit_is_srt() -> None:
    done = subprocess.run([sys.executable, "-m", "srtkit", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("srtkit-core ")
