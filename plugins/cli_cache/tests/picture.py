"""Draws docs/cache.svg: what `srt cache show` says of the quick-start server after a few conversations.

A picture of a real cache: the server keeps prefixes on the device, on the host and in files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from tests.live import live_server

ROOT = Path(__file__).resolve().parents[3]
PICTURE = ROOT / "docs" / "cache.svg"
SYSTEM = "You are the assistant of a small library. Answer in one sentence, and name the shelf where a book stands."
QUESTIONS = ("Where do I find books about birds?", "Where do I find books about trains?", "When do you open?")
FOLLOW = "And for children?"
ANSWER_TOKENS = 24


def main() -> int:
    """Serve, talk, draw while two streams run."""
    with tempfile.TemporaryDirectory() as folder:
        sets = {
            "routes.use": '["admin", "cache"]',
            "prefix_cache.use": '"hiradix"',
            "prefix_cache.options.hiradix.host_gib": "0.25",
            "prefix_cache.options.hiradix.storage": json.dumps({"use": "files", "path": folder}),
        }
        with live_server(ROOT / "configs" / "quickstart.toml", sets) as server:
            for question in QUESTIONS:
                answer = _say(server.base_url, [_user(question)])
                _say(server.base_url, [_user(question), {"role": "assistant", "content": answer}, _user(FOLLOW)])
            _say(server.base_url, [_user(QUESTIONS[2])], salt="another customer")
            asked = [(server.base_url, [_user(one)], "", 1000) for one in QUESTIONS[:2]]
            streams = [threading.Thread(target=_say, args=args) for args in asked]
            for stream in streams:
                stream.start()
            deadline = time.monotonic() + 20
            while httpx.get(f"{server.base_url}/cache").json()["prefixes"][0]["pins"] < len(streams):
                assert time.monotonic() < deadline, "the streams have not met"
                time.sleep(0.05)
            command = [sys.executable, "-m", "srtkit", "cache", "show", server.base_url, "--svg", str(PICTURE)]
            subprocess.run(command, check=True)
            httpx.post(f"{server.base_url}/abort_request", json={"abort_all": True})
            for stream in streams:
                stream.join()
    return 0


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _say(url: str, turns: list[dict[str, str]], salt: str = "", tokens: int = ANSWER_TOKENS) -> str:
    body = {"messages": [{"role": "system", "content": SYSTEM}, *turns], "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": tokens > ANSWER_TOKENS}
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "cache_salt": salt}, timeout=120)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


if __name__ == "__main__":
    sys.exit(main())
