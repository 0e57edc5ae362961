"""`srt plugins show` and `srt plugins trace`, which core sends here."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from srtkit.spec.versions import CONTRACTS
from tests.cli.conftest import Result
from tests.plugins.toys import Site, answers, light_module

Srt = Callable[..., Result]
MODULE = "srtkit_plugin_cli_doctor"


@pytest.fixture(autouse=True)
def here(site: Site) -> None:
    """The toy installation has this distribution, too."""
    entries = {"plugins-show": f"{MODULE}.show", "plugins-trace": f"{MODULE}.trace"}
    site.add("srtkit-plugin-cli-doctor", {"srtkit.cli.v1": entries}, {})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file that names nothing but a model."""
    path = tmp_path / "my.toml"
    path.write_text('[model]\nsource = "org/name"\n')
    return path


@pytest.mark.parametrize("action", ["show", "trace"])
def test_help_shows_an_example_of_itself(srt: Srt, action: str) -> None:
    said = srt("plugins", action, "--help").out
    assert said.startswith(f"usage: srt plugins {action}")
    assert f"example: srt plugins {action} " in said


@pytest.mark.parametrize("kind", ["attention", "graph_runner"])
def test_show_tells_what_it_is_and_ends_with_the_lines_that_switch_it_on(site: Site, srt: Srt, kind: str) -> None:
    site.plugin("platform", "cpu")
    site.plugin(kind, "toy", f'"""A toy of chips.\n\nMore."""{light_module(kind, answers(kind))}')
    done = srt("plugins", "show", f"{kind}:toy")
    assert done.code == 0
    head, lines = done.out.split("\n\n")
    rows = dict(line.split(None, 1) for line in head.splitlines()[1:])
    assert rows["description"] == "A toy of chips."
    assert rows["distribution"] == f"toy-{kind.replace('_', '-')}-toy 1.0"
    assert rows["contract"] == f"1.0; this core speaks {CONTRACTS[kind].version}"
    assert lines == f'[{kind}]\nuse = "toy"\n[{kind}.options.toy]\n# size = 1\n# inner = ""\n'
    assert tomllib.loads(lines)[kind]["options"] == {"toy": {}}


def test_show_asks_the_suite_by_the_command_line_where_it_is_installed(site: Site, srt: Srt) -> None:
    site.plugin("transport", "toy", extra=answers("transport"))
    site.plugin("platform", "cpu")
    assert "certificate" not in srt("plugins", "show", "transport:toy").out
    suite = """
        from srtkit.spec.cli import CliCommand
        from srtkit.spec.hookspecs import hookimpl

        def configure(parser):
            parser.add_argument("words", nargs="+")

        @hookimpl
        def srtkit_cli():
            return CliCommand("conformance", "checks", configure, lambda arguments: print(arguments.words))
    """
    site.plugin("cli", "conformance", suite)
    assert "['certificate', 'transport:toy']\n" in srt("plugins", "show", "transport:toy").out


def test_show_refuses_what_is_no_plugin(site: Site, srt: Srt) -> None:
    assert srt("plugins", "show", "attention").code == 10
    assert srt("plugins", "show", "attention:toy").code == 21
    site.plugin("attention", "toy", "import no_such_library")
    assert srt("plugins", "show", "attention:toy").code == 22


def test_trace_prints_decisions_also_when_wiring_fails(site: Site, srt: Srt, file: Path) -> None:
    site.full_set()
    done = srt("plugins", "trace", "--config", str(file))
    assert done.code == 0
    assert "discover" in done.out
    assert "torch (by platform)" in done.out
    site.plugin("transport", "bad", "raise ValueError('no')")
    done = srt("plugins", "trace", "--config", str(file), "--set", "attention.use=torch", "--set", "transport.use=bad")
    assert done.code == 22
    assert "torch (by file)" in done.out
    assert "ValueError: no" in done.err
