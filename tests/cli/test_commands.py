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
from tests.plugins.toys import Site, answers

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


def test_a_file_is_named_with_or_without_its_flag_but_once(site: Site, srt: Srt, file: Path) -> None:
    site.full_set(checkable=True)
    for command in (["plugins", "list"], ["config", "check"]):
        assert srt(*command, str(file)).code == srt(*command, "--config", str(file)).code == 0
        for both in ([str(file), "--config", str(file)], ["--config", str(file), str(file)]):
            done = srt(*command, *both)
            assert done.code == 2
            assert "got two files" in done.err


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


# --- config


def test_check_says_fine_or_where_it_is_wrong(site: Site, srt: Srt, file: Path) -> None:
    site.full_set(checkable=True)
    assert (
        srt("config", "check", str(file)).out
        == f"{file}: fine, 9 plugins on Toy 1; `srt explain` reads the model, too\n"
    )
    file.write_text('[model]\nsource = "x"\n[attention.options]\nsise = 1\n')
    done = srt("config", "check", str(file))
    assert done.code == 10
    assert done.err.startswith(f'error: {file}:4: unknown key "sise" in [attention.options]')


def test_check_refuses_a_model_that_is_no_file_and_asks_no_hub(site: Site, srt: Srt, file: Path) -> None:
    site.full_set(checkable=True)
    found = srt("config", "check", str(file), "--set", "model.source=/nowhere/model.gguf")
    assert "there is no such file or folder: /nowhere/model.gguf" in found.err
    assert srt("config", "check", str(file), "--set", "model.source=nobody/has-this").err == ""


def test_check_refuses_what_serving_would_refuse_with_the_files_line(site: Site, srt: Srt, file: Path) -> None:
    site.full_set(checkable=True)
    one_process = "PARTS['capabilities'] = lambda options: kind.TransportCapabilities()"
    site.plugin("transport", "threads", extra=answers("transport") + one_process)
    runner = "PARTS['fit'] = lambda wanted, keys: None"
    site.plugin("graph_runner", "needs-graphs", extra=answers("graph_runner") + runner)
    for table, line, remedy in (
        ("parallel", "tensor = 2", "leave it out"),
        ("server", "workers = 2", "leave it out"),
        ("transport", 'use = "threads"', "name another"),
        ("graph_runner", 'use = "needs-graphs"', "remove it from the list"),
        ("memory", "page_size = 5", "choose a size from both lists"),
        ("model", 'dtype = "float16"', "one of"),
    ):
        file.write_text(f"[{table}]\n{line}\n" + ('source = "x"' if table == "model" else '[model]\nsource = "x"'))
        done = srt("config", "check", str(file))
        assert done.code == 30, line
        assert done.err.startswith(f"error: {file}:2: {table}.{line.split()[0]}: ")
        assert remedy in done.err.partition("remedy: ")[2]


def test_a_fallback_that_is_not_installed_is_refused_also_where_it_is_not_needed(
    site: Site, srt: Srt, file: Path
) -> None:
    site.full_set(checkable=True)
    file.write_text('[model]\nsource = "x"\n[attention]\nuse = "torch"\nfallback = ["cpu-native"]\n')
    done = srt("config", "check", str(file))
    assert done.code == 21
    assert "attention:cpu-native: is not installed" in done.err
    assert f"pip install srtkit-plugin-cpu-native (named by {file}:5)" in done.err


def test_check_can_assume_a_device_that_is_not_here(site: Site, srt: Srt, file: Path) -> None:
    site.full_set(checkable=True)
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
    site.full_set(checkable=True)
    done = srt("config", "init", "org/name", "--platform", "cpu")
    assert done.code == 0
    file.write_text(done.out)
    assert srt("config", "check", str(file)).code == 0
