"""`from srtkit import Engine`: a model in this process, through the same scheduler, runner and text stage.

One thread computes; another has an event loop with the same `Service` that the HTTP server has. Callers wait
for it, with or without asyncio.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from srtkit.config.hints import did_you_mean
from srtkit.config.prepare import Run, prepare
from srtkit.config.settings import Settings, load_settings
from srtkit.plugins.loaded import STARTING, STEPPING, blame
from srtkit.serve.generation import Generation, Piece, Prompt, TokenLogprob
from srtkit.serve.openai import MAX_TOKENS, CompletionRequest
from srtkit.serve.prompts import prompts_of, serve_model
from srtkit.serve.requests import parse
from srtkit.serve.service import Service, new_id, start_pump
from srtkit.spec.errors import ConfigError, EngineError, RequestError, SrtError
from srtkit.spec.transport import Receiver, Sender, Transport, TransportBuild

T = TypeVar("T")
Prompts = str | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True)
class Completion:
    """A finished generation. `finish_reason`: stop, length or abort."""

    text: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprob]


class Engine:
    """An engine in this process. Use `from_config`; close it, or use it as a context manager."""

    def __init__(self, settings: Settings) -> None:
        run = prepare(settings)
        self.model = serve_model(run)
        self._loop = asyncio.new_event_loop()
        self._opened = ExitStack()
        folder = Path(self._opened.enter_context(tempfile.TemporaryDirectory(prefix="srt-")))
        plugin = run.loaded.one("transport")
        transport: Transport = plugin.descriptor.build(TransportBuild(folder, plugin.options))
        self._opened.callback(transport.close)
        inbox, outbox = transport.receiver("requests"), transport.sender("deltas")
        # The queue is bounded to protect a server from its clients; here the caller is the only one.
        requests = transport.sender("requests")
        self._service = Service(requests, self.model, {}, settings.server, run.wiring.degraded)
        self._stop_pump = start_pump(transport.receiver("deltas"), self._service, self._loop)
        self._ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._compute, args=(run, inbox, outbox), name="srtkit-engine", daemon=True),
            threading.Thread(target=self._loop.run_forever, name="srtkit-text", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        if self._service.failure is not None:
            self.close()
            raise self._service.failure

    @classmethod
    def from_config(cls, path: str | Path, overrides: Mapping[str, Any] | None = None) -> Self:
        """Load a TOML file; `overrides` are as `--set`, {"memory.kv_gib": 1}, also nested, {"memory": {"kv_gib": 1}}.

        The transport is in-process.
        """
        if not isinstance(overrides, Mapping | None):
            raise ConfigError("Engine.from_config", "overrides is not a dict of settings")
        return cls(load_settings(Path(path), [*_sets(overrides or {}), "transport.use=inproc"]))

    def generate(self, prompts: Prompts, **params: Any) -> list[Completion]:
        """Complete prompts (texts or token id lists) in order, `n` completions each.

        Parameters are those of `/v1/completions`: max_tokens (16), temperature, top_k, top_p, min_p, seed,
        stop, stop_token_ids, ignore_eos, min_tokens, n, skip_special_tokens, cache_salt; and logprobs.
        """
        return self._call(self._complete(prompts, params))

    async def agenerate(self, prompts: Prompts, **params: Any) -> list[Completion]:
        """`generate` for asyncio."""
        return await asyncio.wrap_future(self._submit(self._complete(prompts, params)))

    def stream(self, prompt: str | Sequence[int], **params: Any) -> Iterator[Piece]:
        """Complete one prompt piece by piece. Leaving the iteration early frees its pages."""
        pieces = self._pieces(prompt, params)
        try:
            while (piece := self._call(_next(pieces))) is not None:
                yield piece
        finally:
            self._call(_end(pieces))

    async def astream(self, prompt: str | Sequence[int], **params: Any) -> AsyncIterator[Piece]:
        """`stream` for asyncio."""
        pieces = self._pieces(prompt, params)
        try:
            while (piece := await asyncio.wrap_future(self._submit(_next(pieces)))) is not None:
                yield piece
        finally:
            await asyncio.wrap_future(self._submit(_end(pieces)))

    def control(self, op: str, **args: Any) -> Any:
        """Have the engine do an operation ("flush_cache", "info", "cache", "storage"); its answer."""
        return self._call(self._service.control(str(op), **args))

    def close(self) -> None:
        """Stop the threads and free everything; whoever still waits gets an error. Idempotent."""
        if self._loop.is_closed():
            return
        with suppress(SrtError):  # failed already, or in a step that outlasts the wait for a reply
            self.control("shutdown")
        self._threads[0].join(timeout=60)
        self._call(self._fail(EngineError("engine", "is closed")))
        self._stop_pump()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[1].join(timeout=60)
        self._loop.close()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- in the event loop ----------------------------------------------------------------------

    async def _prompts(self, prompts: Any, params: Mapping[str, Any]) -> list[Prompt]:
        given = prompts
        if isinstance(prompts, Sequence) and not isinstance(prompts, str):
            given = [list(one) if isinstance(one, Sequence) and not isinstance(one, str) else one for one in prompts]
        fields = parse({**params, "prompt": given}, CompletionRequest, _unknown)
        return await prompts_of(self.model, fields.prompt, "prompt", fields, MAX_TOKENS, fields.logprobs)

    async def _complete(self, prompts: Prompts, params: Mapping[str, Any]) -> list[Completion]:
        job = self._service.open(await self._prompts(prompts, params), new_id("engine"), time.monotonic())
        try:
            pieces = await job.whole()
        finally:
            self._service.close(job)
        return [_completion(one, _checked(piece)) for one, piece in zip(job.generations, pieces, strict=True)]

    async def _pieces(self, prompt: str | Sequence[int], params: Mapping[str, Any]) -> AsyncIterator[Piece]:
        if not isinstance(prompt, Sequence):
            raise RequestError("prompt", "a text or a list of token ids is expected")
        job = self._service.open(await self._prompts([prompt], params), new_id("engine"), time.monotonic())
        try:
            while job.running:
                for _, piece in await job.news():
                    yield _checked(piece)
        finally:
            self._service.close(job)

    async def _fail(self, error: SrtError) -> None:
        self._service.fail(self._service.failure or error)

    # -- between threads ------------------------------------------------------------------------

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._loop.is_closed():
            work.close()
            raise EngineError("engine", "is closed", "make a new one")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        finally:
            future.cancel()  # Ctrl-C while waiting: its pages are freed

    def _compute(self, run: Run, inbox: Receiver, outbox: Sender) -> None:
        doing, close = STARTING, None
        try:
            from srtkit.engine.build import build_engine  # torch, in the thread that computes

            built = build_engine(run.settings, run.loaded, run.facts, run.config, run.path, lambda done, total: None)
            close, doing = built.close, STEPPING
            self._ready.set()
            built.loop(inbox, outbox).run()
        except Exception as error:
            self._submit(self._fail(blame(error, run.wiring, doing))).result()
            self._ready.set()
        if close is not None:
            close()


def _sets(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _sets(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"


def _unknown(name: str, known: Collection[str]) -> None:
    raise ConfigError("Engine", f"unknown parameter {name!r}", did_you_mean(name, known) or "see Engine.generate")


async def _next(pieces: AsyncIterator[Piece]) -> Piece | None:
    return await anext(pieces, None)


async def _end(pieces: Any) -> None:
    await pieces.aclose()


def _completion(generation: Generation, whole: Piece) -> Completion:
    tokens = generation.prompt_tokens, generation.cached_tokens
    return Completion(whole.text, whole.token_ids, whole.finish_reason or "", *tokens, whole.logprobs)


def _checked(piece: Piece) -> Piece:
    if piece.finish_reason == "error":
        raise EngineError("engine", piece.error)
    return piece
