"""Every kind of mistake in a settings file or a model: the message and the exit code of `srt serve`.

All but the last are found before a process is started. The port in the file is taken, so that a mistake that
goes unnoticed is another failure instead of a server.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from srtkit.cli.main import main
from srtkit.spec.errors import (
    ConfigError,
    LoaderError,
    OutOfMemory,
    PluginBroken,
    PluginNotFound,
    SrtError,
    Unsupported,
)
from srtkit_plugin_cpu_native import LIBRARY
from tests.live_server import tiny
from tests.plugins.toys import Site

Fail = Callable[..., tuple[int, str]]
NATIVE = LIBRARY.exists()
"""Whether the platform's first choice is here: where there is no compiler it is not."""


@pytest.fixture
def serve(
    config: Path, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Fail]:
    """Runs `srt serve` on the tiny model, or on a file, with settings; its exit code and what it said."""
    monkeypatch.syspath_prepend(site.path)
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def serving(*sets: str, file: Path = config) -> tuple[int, str]:
            port = f"server.port={taken.getsockname()[1]}"
            words = [word for one in (port, *sets) for word in ("--set", one)]
            code = main(["serve", "--config", str(file), *words])
            printed = capsys.readouterr()
            assert printed.out == ""
            return code, printed.err

        yield serving


@pytest.mark.parametrize(
    ("sets", "error", "words"),
    [
        (["server.prot=1"], ConfigError, ["--set server.prot", 'did you mean "port"']),
        (["servr.port=1"], ConfigError, ["servr", 'did you mean "server"']),
        (["scheduler.max_running=many"], ConfigError, ["--set scheduler.max_running", "many"]),
        (["scheduler.max_running=0"], ConfigError, ["--set scheduler.max_running"]),
        (["model.dtype=int4"], ConfigError, ["--set model.dtype", "bfloat16"]),
        (["memory.page_size=257"], ConfigError, ["--set memory.page_size", "256"]),
        (["platform.options.thread=1"], ConfigError, ["platform.options.thread", 'did you mean "threads"']),
        (["memory.fraction=0.5"], ConfigError, ["fraction and kv_gib"]),
        (["attention.use=torch", "attention.fallback=torch"], ConfigError, ['"torch" is both use and fallback']),
        (["server.host=192.0.2.1"], ConfigError, ["server.host", "cannot listen on 192.0.2.1"]),
        (["attention.use=troch"], PluginNotFound, ["attention:troch", 'did you mean "torch"']),
        (
            ["platform.use=tpu"],
            PluginNotFound,
            ["platform:tpu", "no installed distribution offers it", "installed: "],
        ),
        (["attention.use=unimportable"], PluginBroken, ["attention:unimportable", "no instrument found"]),
        (["transport.use=inproc"], Unsupported, ["transport:inproc", "all ends must be in one process", "zmq"]),
        (["parallel.tensor=2"], Unsupported, ["parallel.tensor"]),
        (
            ["attention.use=torch", "attention.decode=coarse", "memory.page_size=16"],
            Unsupported,
            ["16 suits both attention:coarse (64) and attention:torch (16,"],
        ),
        (["attention.use=torch", "attention.mla=coarse"], Unsupported, ["attention.mla", "does not do it yet"]),
        (["attention.use=torch", "attention.draft=torch"], Unsupported, ["attention.draft", "does not do it yet"]),
        (["attention.use=coarse", "memory.page_size=16"], Unsupported, ["16 suits both attention:coarse (64)"]),
        (
            ["memory.kv_gib=0.0000001"],
            OutOfMemory,
            ["--set memory.kv_gib", "2 KV pages take", "raise memory.kv_gib, at least to"],
        ),
        (["prefix_cache.use=needy"], Unsupported, ["prefix_cache:needy: needs transport:zmq", "hands no transport"]),
        (["prefix_cache.options.events=true"], Unsupported, ["prefix_cache:radix: declares events", "switch them off"]),
        (["graph_runner.use=cuda-full"], Unsupported, ["--set graph_runner.use", "captures nothing on"]),
        (
            ["attention.use=torch", "attention.fallback=nope"],
            PluginNotFound,
            ["nope", "named by --set attention.fallb"],
        ),
        (["model.source=/nowhere/model"], LoaderError, ["/nowhere/model", "no such file or folder"]),
        (["model.source=package:nobody_has_this/a.gguf"], LoaderError, ["no package nobody_has_this", "pip install"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_settings(serve: Fail, sets: list[str], error: type[SrtError], words: list[str]) -> None:
    code, said = serve(*sets)
    assert said.startswith("error: ")
    for word in words:
        assert word in said
    assert code == error.exit_code


@pytest.mark.parametrize("command", [["explain"], ["config", "check"]], ids=" ".join)
@pytest.mark.parametrize(
    "line",
    [
        "transport.use=inproc",
        "graph_runner.use=cuda-full",
        "prefix_cache.use=needy",
        "server.workers=2",
        "parallel.data=2",
    ],
)
def test_what_serving_refuses_is_refused_without_serving(
    config: Path,
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    line: str,
) -> None:
    monkeypatch.syspath_prepend(site.path)
    assert main([*command, str(config), "--set", line]) == Unsupported.exit_code
    setting, _, value = line.partition("=")
    named = "prefix_cache:needy" if value == "needy" else f"--set {setting}"
    assert f"error: {named}: " in capsys.readouterr().err


def test_a_plugin_that_the_model_does_not_use_is_noted(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(config)]) == 0
    assert "note: " not in capsys.readouterr().out
    assert main(["explain", str(config), "--set", "recurrent.use=torch"]) == 0
    assert "\nnote: recurrent:torch is not used: " in capsys.readouterr().out


REFUSED = "attention falls back to torch: memory.page_size 16 suits both attention:coarse (64)"


def test_a_fallback_that_serves_because_the_named_one_does_not_fit_is_reported(
    config: Path, site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loading both succeeds: the choice falls when the model is known. A platform's own order is no promise."""
    monkeypatch.syspath_prepend(site.path)
    words = ["--config", str(config), "--set", "memory.page_size=16"]
    named = ["--set", "attention.use=coarse", "--set", 'attention.fallback=["torch"]']
    assert main(["explain", *words, *named]) == 0
    said = capsys.readouterr().out
    assert f"  degraded: {REFUSED}" in said
    assert "page 16, attention:torch\n" in said
    assert main(["explain", "--config", str(config), "--set", "model.dtype=float16"]) == 0
    said = capsys.readouterr().out
    assert "degraded" not in said
    assert (", attention:torch\n" in said) and ("passed over: attention falls back to torch" in said) == NATIVE


def test_the_line_of_a_mistake_in_a_file(serve: Fail, model: Path, tmp_path: Path) -> None:
    file = tiny.write_config(tmp_path / "my.toml", model, {"scheduler": "max_runing = 3"})
    line = 1 + file.read_text().splitlines().index("max_runing = 3")
    code, said = serve(file=file)
    assert f"{file}:{line}" in said
    assert 'did you mean "max_running"' in said
    assert code == ConfigError.exit_code
    file.write_text("[model\n")
    code, said = serve(file=file)
    assert "is not valid TOML" in said
    assert code == ConfigError.exit_code


def _architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["NeverHeardOf"]}))


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (_architecture, Unsupported, ["knows the architecture NeverHeardOf", "LlamaForCausalLM"]),
        (lambda folder: (folder / "config.json").unlink(), LoaderError, ["config.json is missing"]),
        (lambda folder: (folder / "config.json").write_text("{"), LoaderError, ["config.json", "JSON"]),
        (lambda folder: (folder / "model.safetensors").unlink(), LoaderError, ["no loader reads this form"]),
    ],
    ids=["architecture", "no config", "broken config", "no weights"],
)
def test_models(
    serve: Fail, model: Path, tmp_path: Path, damage: Callable[[Path], None], error: type[SrtError], words: list[str]
) -> None:
    shutil.copytree(model, tmp_path / "model")
    damage(tmp_path / "model")
    code, said = serve(f"model.source={tmp_path / 'model'}")
    for word in words:
        assert word in said
    assert code == error.exit_code


def test_weights_that_end_early(model: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(model, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sets = ["--set", f"model.source={tmp_path / 'model'}", "--set", "server.port=0"]
    command = [sys.executable, "-m", "srtkit", "serve", "--config", str(config), *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: model_loader:safetensors: {weights}: ")
    assert "Traceback" not in done.stderr
    assert "Fatal" not in done.stderr
    assert done.returncode == LoaderError.exit_code
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
