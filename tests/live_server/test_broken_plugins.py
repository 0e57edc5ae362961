"""A plugin that raises when it is built, or in a step: who is named, what clients get, how the server ends.

One that raises at import is in test_mistakes.py, and as the reason for a fallback in test_manners.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from srtkit.spec.errors import EngineError, PluginBroken
from tests.live_server.clients import complete, events, read_rest, send
from tests.live_server.conftest import Start
from tests.plugins.toys import Site


@pytest.mark.parametrize(
    ("fail", "raised", "remedy"),
    [
        (
            "build",
            "RuntimeError while starting: the strings are out of tune",
            "report it to its author with the lines above, or name another plugin under [attention]",
        ),
        (
            "import",
            "ModuleNotFoundError while starting: No module named 'no_such_vendor'",
            "update or reinstall toy-attention-wrapped, or pip install no_such_vendor; `pip check` says what it lacks",
        ),
    ],
)
def test_at_build(
    config: Path, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: str, raised: str, remedy: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sets = ["--set", "attention.use=wrapped", "--set", f"attention.options.fail={fail}", "--set", "server.port=0"]
    command = [sys.executable, "-m", "srtkit", "serve", str(config), *sets]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == ""
    assert f"error: attention:wrapped: raised {raised} (" in done.stderr
    assert re.search(r"toy_attention_wrapped\.py:\d+ in build", done.stderr)
    assert "toy-attention-wrapped 1.0, entry point srtkit.attention.v1: wrapped" in done.stderr
    assert f"remedy: {remedy}" in done.stderr
    assert "Fatal" not in done.stderr
    assert done.returncode == PluginBroken.exit_code
    assert list(tmp_path.iterdir()) == []


def test_in_a_step(start: Start, tmp_path: Path) -> None:
    trigger = tmp_path / "now"
    sets = {
        "attention.use": "wrapped",
        "attention.options.fail": "step",
        "attention.options.trigger": str(trigger),
    }
    sentence = "attention:wrapped: raised RuntimeError during a step: a string broke"
    with start(sets) as server:
        assert complete(server, "Before", 5)
        streams = [send(server, f"Stream {i}", 1900) for i in range(2)]
        for stream in streams:
            assert b"200 OK" in stream.recv(1 << 16)
        whole = send(server, "Not a stream", 1900, stream=False)
        trigger.touch()
        for stream in streams:
            *_, error, done = events(read_rest(stream))
            assert json.loads(error)["error"]["message"] == "the engine has stopped"
            assert done == "[DONE]"
        head, _, body = read_rest(whole).partition("\r\n\r\n")
        assert " 503 " in head.splitlines()[0]
        assert json.loads(body)["error"]["message"].startswith("the engine has stopped")
        assert server.process.wait(10) == EngineError.exit_code
        assert f"error: {sentence}" in server.output()
        assert re.search(r"toy_attention_wrapped\.py:\d+ in fill", server.output())
        assert "remedy: report it to its author with the lines above" in server.output()
