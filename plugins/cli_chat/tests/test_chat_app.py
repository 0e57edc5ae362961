"""The sub-command as core uses it: hook, arguments, prompts from the command line and from a pipe."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy
import pytest

import srtkit_plugin_cli_chat as plugin
from srtkit.spec import hookspecs
from srtkit.spec.errors import ConfigError

if TYPE_CHECKING:
    from conftest import StubServer


def run(*argv: str) -> int:
    manager = pluggy.PluginManager("srtkit")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin)
    manager.check_pending()
    (command,) = manager.hook.srtkit_cli()
    assert command.name == "chat"
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return int(command.run(parser.parse_args(argv)))


def test_prompt_from_the_command_line(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("say", "hello", "--url", stub.url, "--system", "be kind", "--max-tokens", "9") == 0
    assert capsys.readouterr().out == "Hello, wörld\n"
    assert [m["content"] for m in stub.bodies[0]["messages"]] == ["be kind", "say hello"]
    assert (stub.bodies[0]["model"], stub.bodies[0]["max_tokens"]) == ("tiny", 9)


def test_prompt_from_a_pipe(
    stub: StubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n"))
    assert run("--url", stub.url, "--model", "other") == 0
    assert capsys.readouterr().out == "Hello, wörld\n"
    assert stub.bodies[0]["messages"] == [{"role": "user", "content": "from a pipe"}]
    assert stub.bodies[0]["model"] == "other"


def test_empty_pipe_is_refused(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" \n"))
    with pytest.raises(ConfigError, match="empty"):
        run("--url", stub.url)
    assert stub.bodies == []


def test_piped_output_is_not_changed(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    stub.pieces = ["a\x1b[2Jb"]
    run("x", "--url", stub.url)
    assert capsys.readouterr().out == "a\x1b[2Jb\n"


def test_key_as_a_word_or_from_a_file(stub: StubServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stub.api_key = "sécret"
    assert run("hi", "--url", stub.url, "--api-key", "sécret") == 0
    (tmp_path / "key").write_text("sécret\n", encoding="utf-8")
    assert run("hi", "--url", stub.url, "--api-key", f"@{tmp_path / 'key'}") == 0
    assert capsys.readouterr().out == "Hello, wörld\n" * 2


@pytest.mark.parametrize("more", [(), ("--model", "tiny")])
@pytest.mark.parametrize(
    ("given", "cause"), [((), "wants an API key"), (("--api-key", "wrong"), "does not take this API key")]
)
def test_a_key_that_is_not_the_servers(
    stub: StubServer, given: tuple[str, ...], more: tuple[str, ...], cause: str
) -> None:
    stub.api_key = "sécret"
    with pytest.raises(ConfigError, match=cause) as caught:
        run("hi", "--url", stub.url, *given, *more)
    assert caught.value.exit_code == 10
    assert "--api-key KEY" in caught.value.remedy
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "two words", "line\nbreak", "@/nowhere/at/all"])
def test_what_is_no_key(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("hi", "--api-key", key)
    assert caught.value.code == 2
    assert "--api-key" in capsys.readouterr().err


def test_descriptor_imports_no_client_and_no_torch() -> None:
    code = "import sys, srtkit_plugin_cli_chat; print({'httpx', 'rich', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
