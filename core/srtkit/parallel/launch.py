"""`srt serve`: this process is the HTTP server and the text stage; each rank is a child.

Start-up is a barrier: ready when every child says so, else everything stops with the child's error. A child
that ends later, by whatever cause, ends the server with an error that names it. Nothing is left behind.
"""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import uvicorn
import uvloop
from fastapi import FastAPI

from srtkit.config.prepare import Run, prepare, rank_environment
from srtkit.config.settings import Settings
from srtkit.parallel.banner import banner, busy_line, log_with_time
from srtkit.serve.app import create_app
from srtkit.serve.prompts import ServedModel, serve_model
from srtkit.serve.service import Service, start_pump
from srtkit.spec.errors import ConfigError, EngineError, SrtError
from srtkit.spec.messages import Control, Failed, Ready, Stats, decode
from srtkit.spec.transport import Receiver, Transport, TransportBuild

_log = logging.getLogger(__name__)
Rank = subprocess.Popen[bytes]
READY_SECONDS = 1800.0
STOP_SECONDS = 10.0
BUSY_SECONDS = 10.0
# How long requests may go on that run when SIGTERM or SIGHUP comes; after Ctrl-C they end at once.
GRACE_SECONDS = 5.0


def serve(settings: Settings) -> int:
    """Start, serve until stopped, stop everything. Returns the exit code; raises the `SrtError` that ended it."""
    began = time.monotonic()
    log_with_time()
    with contextlib.ExitStack() as stack:
        _on_stop(lambda number, _: _end_start(number, stack))
        run = prepare(settings, serving=True)
        plugin = run.loaded.one("transport")
        listener = stack.enter_context(contextlib.closing(_listen(settings.server.host, settings.server.port)))
        # Mode 700; a short path, since those of sockets are bounded.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srt-", ignore_cleanup_errors=True)))
        rank = stack.enter_context(_rank(run, folder))
        transport: Transport = plugin.descriptor.build(TransportBuild(folder, plugin.options))
        stack.callback(transport.close)
        inbox = transport.receiver("deltas")
        model = serve_model(run)  # while the rank loads
        ready = _await_ready(inbox, rank)
        info, most = server_info(run, ready, model), settings.scheduler.max_waiting
        service = Service(transport.sender("requests"), model, info, settings.server, run.wiring.degraded, most)
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        stack.callback(_stop, service, rank)
        app = create_app(service, run.loaded.all("routes"))
        lines = banner(run, ready, url, time.monotonic() - began)
        uvloop.run(_serve_http(app, service, listener, inbox, rank, "\n".join(lines)))
        if service.failure is not None:
            raise service.failure
    return 128 + signal.SIGTERM  # nothing else ends it without an error


def _on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    """What SIGTERM does, and SIGHUP, by which a terminal says that it was closed."""
    signal.signal(signal.SIGTERM, handler)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it, so that we outlive the terminal
        signal.signal(signal.SIGHUP, handler)


def _end_start(number: int, stack: contextlib.ExitStack) -> None:
    _log.info("stopping on %s during the start", signal.Signals(number).name)
    stack.close()
    os._exit(128 + signal.SIGTERM)  # an exception would be lost if a callback of the interpreter's is running


def _stop(service: Service, rank: Rank) -> None:
    """An orderly end: the rank closes what it holds."""
    with contextlib.suppress(subprocess.TimeoutExpired, SrtError):
        service.send(Control(0, "shutdown"))
        rank.wait(timeout=STOP_SECONDS)


class _Server(uvicorn.Server):
    """Prints the banner once connections are accepted. Ends requests that still run when the time of grace is over,
    so that their clients get an end, too.
    """

    def __init__(self, config: uvicorn.Config, service: Service, banner: str) -> None:
        super().__init__(config)
        self._service = service
        self._banner = banner
        self._grace = GRACE_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._banner, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGINT:
            self._grace = 0.0
            super().handle_exit(sig, frame)  # which raises KeyboardInterrupt at the end
        self.should_exit = True
        _log.info("stopping on %s: %d requests are ended", signal.Signals(sig).name, len(self._service.jobs))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        over = asyncio.get_running_loop().call_later(self._grace, self._service.abort, None)
        await super().shutdown(sockets)
        over.cancel()


async def _serve_http(
    app: FastAPI, service: Service, listener: socket.socket, inbox: Receiver, rank: Rank, banner: str
) -> None:
    loop = asyncio.get_running_loop()
    own: dict[str, Any] = {"log_config": None, "log_level": "warning", "lifespan": "off"}
    access_log, grace = service.settings.access_log, int(2 * GRACE_SECONDS)
    config = uvicorn.Config(app, access_log=access_log, timeout_graceful_shutdown=grace, **own)
    if access_log:  # uvicorn has one level for this and for what it says of itself
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    server = _Server(config, service, banner)
    _on_stop(server.handle_exit)

    def on_end() -> None:
        if not server.should_exit:
            service.fail(service.failure or _ended(rank))
            server.should_exit = True

    def wait_for_rank() -> None:
        rank.wait()
        with contextlib.suppress(RuntimeError):  # the event loop has ended: an orderly stop
            loop.call_soon_threadsafe(loop.call_later, 0.3, on_end)  # a Failed message may still be on its way

    threading.Thread(target=wait_for_rank, name="rank-watch", daemon=True).start()
    stop_pump = start_pump(inbox, service, loop)
    reporter = asyncio.create_task(_report_while_busy(service))
    try:
        await server.serve(sockets=[listener])
    finally:
        server.should_exit = True
        reporter.cancel()
        stop_pump()


async def _report_while_busy(service: Service) -> None:
    before, when = service.stats or Stats(), time.monotonic()
    while True:
        await asyncio.sleep(BUSY_SECONDS)
        stats, now = service.stats or Stats(), time.monotonic()
        if stats.steps > before.steps:
            _log.info(busy_line(stats, before, now - when))
        before, when = stats, now


def server_info(run: Run, ready: dict[str, Any], model: ServedModel) -> dict[str, Any]:
    """What `/server_info` says, apart from live figures."""
    plugins = [
        {"id": one.id, "contract": one.contract, "distribution": one.offer.distribution, "version": one.offer.version}
        for one in run.wiring.plugins
    ]
    return {
        "model": {"architecture": run.config.model.architecture, "dtype": run.config.model.dtype, **model.card()},
        "max_context": run.config.limits.max_context,
        "wiring": {"digest": run.wiring.digest, "plugins": plugins},
        "memory": ready,
    }


@contextmanager
def _rank(run: Run, folder: Path) -> Iterator[Rank]:
    command = [sys.executable, "-m", "srtkit.parallel.worker"]
    # A group of its own: Ctrl-C is for this process, which then ends the rank in order.
    environment = rank_environment(run.defaults.environment)
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, process_group=0)
    try:
        assert rank.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: whoever waits for it says how
            rank.stdin.write(msgspec.json.encode(run.rank_spec(folder)) + b"\n")
            rank.stdin.flush()
        yield rank
    finally:
        try:
            rank.communicate(timeout=2)  # closes its input: a rank that has not ended by itself does now
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def _await_ready(inbox: Receiver, rank: Rank) -> dict[str, Any]:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        gone = rank.poll() is not None  # before looking, so that a last message is seen
        frames = inbox.receive(0.1)
        message = decode(frames[0]) if frames else None
        if isinstance(message, Ready):
            return message.info
        if isinstance(message, Failed):
            raise message.error()
        if gone and message is None:
            raise _ended(rank)
    raise EngineError("rank 0", f"is not ready after {READY_SECONDS:.0f} s", "see its output above")


def _ended(rank: Rank) -> SrtError:
    code = rank.poll()
    how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
    remedy = "if the system was short of memory, lower memory.fraction" if code == -signal.SIGKILL else ""
    return EngineError("engine", f"the process of rank 0 (pid {rank.pid}) {how}", remedy or "see its output above")


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything slow, so that a taken port is noticed at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is spelled out; with it, events wait for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(error.errno, f"port {port} on {host} is in use") from None
        raise ConfigError("server.host", f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener
