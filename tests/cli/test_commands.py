"""`srt serve`, `plugins` and `config` over toy plugins: what they print, and how they refuse."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from srtkit.cli.serve import serve_settings
from srtkit.plugins.registry import discover
from srtkit.spec.errors import ConfigError
from tests.cli.conftest import Result
from tests.plugins.toys import Site

Srt = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file that names little."""
    path = tmp_path / "my.toml"
    path.write_text('[model]\nsource = "org/name"\n[server]\nport = 1\n')
    return path


# --- serve


def settings(site: Site, *sets: str, target: str | None = None, config: Path | None = None) -> tuple[str, str, int]:
    arguments = argparse.Namespace(target=target, config=config, sets=list(sets))
    made = serve_settings(arguments, discover([str(site.path)]))
    return made.model.source, made.platform.use or "-", made.server.port


def test_serve_takes_a_file_in_three_ways(site: Site, file: Path) -> None:
    assert settings(site, config=file) == ("org/name", "-", 1)
    assert settings(site, target=str(file)) == ("org/name", "-", 1)
    assert settings(site, "server.port=2", config=file) == ("org/name", "-", 2)


def test_serve_takes_another_model_with_a_file(site: Site, file: Path) -> None:
    assert settings(site, target='a "quoted" folder', config=file) == ('a "quoted" folder', "-", 1)


def test_serve_of_a_bare_model_prints_the_file_it_makes_up(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.full_set()
    assert settings(site, "platform.use=cpu", "server.port=5", target="org/name") == ("org/name", "cpu", 5)
    printed = tomllib.loads(capsys.readouterr().out)
    assert printed["model"] == {"source": "org/name"}
    assert printed["attention"] == {"use": "torch"}


def test_serve_refuses_two_files_and_nothing(site: Site, file: Path) -> None:
    with pytest.raises(ConfigError, match="two files"):
        settings(site, target=str(file), config=file)
    with pytest.raises(ConfigError, match="needs a MODEL or a FILE"):
        settings(site)


def test_serve_without_any_set_says_what_to_install(srt: Srt, file: Path) -> None:
    for arguments in (["--config", str(file)], ["org/name"]):
        done = srt("serve", *arguments)
        assert done.code == 21
        assert "pip install 'srtkit-core[cpu]'" in done.err


# --- plugins


def test_list_marks_every_state(site: Site, srt: Srt, file: Path) -> None:
    site.full_set()
    site.plugin("attention", "idle", "raise AssertionError('imported')")
    site.plugin("attention", "late", "raise AssertionError('imported')", major=2)
    broken = site.path / "broken-1.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[srtkit.attention.v1]\nx = y\n")
    done = srt("plugins", "list", "--available", "--config", str(file))
    assert done.code == 0
    rows = {
        tuple(line.split()[:2]): line.split(None, 4)[4] for line in done.out.splitlines()[1:] if "warning" not in line
    }
    assert rows["attention", "torch"] == f"used by {file}"
    assert rows["attention", "idle"] == "installed"
    assert rows["attention", "late"] == "other major: v2, this core speaks v1"
    assert rows["ops", "cpu"] == "pip install srtkit-plugin-ops-cpu"
    assert "warning: a distribution in" in done.out
    assert "broken metadata" in done.out


def test_list_as_json(site: Site, srt: Srt) -> None:
    site.plugin("attention", "toy", "raise AssertionError('imported')")
    assert json.loads(srt("plugins", "list", "--json").out) == {
        "plugins": [
            {
                "kind": "attention",
                "name": "toy",
                "major": 1,
                "value": "toy_attention_toy",
                "distribution": "toy-attention-toy",
                "version": "1.0",
                "status": "installed",
            }
        ],
        "faults": [],
    }
    assert "toy_attention_toy" not in sys.modules


def test_list_still_lists_when_the_file_cannot_be_wired(site: Site, srt: Srt, file: Path) -> None:
    site.plugin("attention", "toy")
    done = srt("plugins", "list", "--config", str(file))
    assert done.code == 0
    assert "installed" in done.out
    assert f"warning: {file} cannot be wired: platform:cpu" in done.out


@pytest.mark.parametrize("kind", ["attention", "graph_runner"])
def test_show_ends_with_the_lines_that_switch_the_plugin_on(site: Site, srt: Srt, kind: str) -> None:
    site.plugin(kind, "toy")
    done = srt("plugins", "show", f"{kind}:toy")
    assert done.code == 0
    head, lines = done.out.split("\n\n")
    assert f"toy-{kind.replace('_', '-')}-toy 1.0" in head
    assert "1.0; this core speaks 1.0" in head
    assert lines == f'[{kind}]\nuse = "toy"\n[{kind}.options.toy]\n# size = 1\n# inner = ""\n'
    assert tomllib.loads(lines)[kind]["options"] == {"toy": {}}


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


# --- config


def test_check_says_fine_or_where_it_is_wrong(site: Site, srt: Srt, file: Path) -> None:
    site.full_set()
    assert srt("config", "check", str(file)).out == f"{file}: fine, 8 plugins on Toy 1\n"
    file.write_text('[model]\nsource = "x"\n[attention.options]\nsise = 1\n')
    done = srt("config", "check", str(file))
    assert done.code == 10
    assert done.err.startswith(f'error: {file}:4: unknown key "sise" in [attention.options]')


def test_check_can_assume_a_device_that_is_not_here(site: Site, srt: Srt, file: Path) -> None:
    site.full_set()
    absent = ("--set", "platform.options.size=0")
    assert srt("config", "check", str(file), *absent).code == 25
    assert srt("config", "check", str(file), *absent, "--assume", "toy1").code == 0


def test_schema_has_the_plugins_of_the_file_or_none_with_core_alone(site: Site, srt: Srt, file: Path) -> None:
    alone = json.loads(srt("config", "schema").out)
    assert "attention" in alone["properties"]
    site.full_set()
    schema = json.loads(srt("config", "schema", "--config", str(file)).out)
    assert schema["$defs"]["Options"]["properties"].keys() == {"size", "inner"}


def test_schema_imports_no_third_party_that_is_not_named(site: Site, srt: Srt) -> None:
    site.plugin("attention", "toy", "raise AssertionError('imported')")
    assert srt("config", "schema").code == 0


def test_init_prints_a_file_that_checks(site: Site, srt: Srt, file: Path) -> None:
    site.full_set()
    done = srt("config", "init", "org/name", "--platform", "cpu")
    assert done.code == 0
    file.write_text(done.out)
    assert srt("config", "check", str(file)).code == 0
