"""`from srtkit import Engine`: a model in this process, through the same scheduler, runner and text stage.

One thread computes, one takes the engine's messages; callers wait for pieces, with or without asyncio.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from srtkit.config.prepare import Run, prepare
from srtkit.config.settings import Settings, load_settings
from srtkit.parallel.blame import STARTING, STEPPING, blame
from srtkit.serve.frontend import Frontend, QueueFull
from srtkit.serve.generation import Generation, Piece, Prompt, TokenLogprob
from srtkit.serve.model import serve_model
from srtkit.serve.prompts import build_prompts, check_ids, check_length
from srtkit.serve.requests import GenerationFields
from srtkit.spec.errors import ConfigError, EngineError
from srtkit.spec.messages import Reply, decode
from srtkit.spec.transport import Receiver, Sender, Transport, TransportBuild

Prompts = Sequence[str] | Sequence[Sequence[int]]


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
        self._news = threading.Condition()
        run = prepare(settings)
        self.model = serve_model(run)
        plugin = run.loaded.one("transport")
        self._folder = tempfile.TemporaryDirectory(prefix="srt-")
        self._transport: Transport = plugin.descriptor.build(TransportBuild(Path(self._folder.name), plugin.options))
        inbox, outbox = self._transport.receiver("requests"), self._transport.sender("deltas")
        requests, self._deltas = self._transport.sender("requests"), self._transport.receiver("deltas")
        self._frontend = Frontend(requests, self.model.tokenizer, settings.scheduler.max_waiting)
        self._ready = threading.Event()
        self._threads = [
            threading.Thread(target=self._compute, args=(run, inbox, outbox), name="srtkit-engine", daemon=True),
            threading.Thread(target=self._pump, name="srtkit-pump", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._ready.wait()
        if self._frontend.failure is not None:
            self.close()
            raise self._frontend.failure

    @classmethod
    def from_config(cls, path: str | Path, overrides: Mapping[str, str] | None = None) -> Self:
        """Load a TOML file; `overrides` are as `--set`: {"memory.kv_gib": "1"}. The transport is in-process."""
        sets = [f"{key}={value}" for key, value in (overrides or {}).items()]
        return cls(load_settings(Path(path), [*sets, "transport.use=inproc"]))

    def generate(self, prompts: Prompts | str, **params: Any) -> list[Completion]:
        """Complete prompts (texts or token id lists) in order, `n` completions each.

        Parameters are those of `/v1/completions`: max_tokens (16), temperature, top_k, top_p, min_p, seed,
        stop, stop_token_ids, ignore_eos, min_tokens, n, skip_special_tokens, cache_salt; and logprobs.
        """
        wanted = [one for prompt in _listed(prompts) for one in self._prompts(prompt, params)]
        generations: list[Generation] = []
        with self._news:
            try:
                for one in wanted:
                    generations.append(self._open_in_turn(one))
                return [self._completion(generation) for generation in generations]
            finally:
                for generation in generations:
                    self._cancel(generation)

    def stream(self, prompt: str | Sequence[int], **params: Any) -> Iterator[Piece]:
        """Complete one prompt piece by piece. Leaving the iteration early frees its pages."""
        (wanted,) = self._prompts(prompt, params)
        with self._news:
            generation = self._frontend.open(wanted)
        try:
            while True:
                with self._news:
                    piece = _checked(self._wait(generation))
                yield piece
                if piece.finished:
                    return
        finally:
            self._cancel(generation)

    async def astream(self, prompt: str | Sequence[int], **params: Any) -> AsyncIterator[Piece]:
        """`stream` for asyncio."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        (wanted,) = self._prompts(prompt, params)
        with self._news:
            generation = self._frontend.open(wanted)
            generation.on_news = partial(_wake, loop, woken)
            woken.set()
        try:
            while True:
                await woken.wait()
                woken.clear()
                with self._news:
                    piece = generation.take()
                if piece is not None:
                    yield _checked(piece)
                    if piece.finished:
                        return
        finally:
            generation.on_news = None
            self._cancel(generation)

    async def agenerate(self, prompts: Prompts | str, **params: Any) -> list[Completion]:
        """`generate` for asyncio."""
        return await asyncio.to_thread(self.generate, prompts, **params)

    def control(self, op: str, timeout: float = 60.0) -> Any:
        """Have the engine do an operation ("flush_cache", "info"); its answer."""
        deadline = time.monotonic() + timeout
        with self._news:
            number = self._frontend.control(op)
            while number not in self._frontend.replies:
                self._frontend.check()
                if not self._news.wait(timeout=max(0.0, deadline - time.monotonic())):
                    raise EngineError("engine", f"did not answer {op!r} within {timeout:.0f} s")
            reply: Reply = self._frontend.replies.pop(number)
        if reply.error:
            raise EngineError("engine", reply.error)
        return reply.value

    def flush_cache(self) -> None:
        """Empty the prefix cache as far as nothing runs on it."""
        self.control("flush_cache")

    def close(self) -> None:
        """Stop the threads and free everything. Idempotent."""
        if self._frontend.failure is None:
            with self._news:
                self._frontend.control("shutdown")
        for thread in self._threads:
            thread.join(timeout=60)
        self._transport.close()
        self._folder.cleanup()
        with self._news:  # whoever still waits is told
            self._frontend.fail(self._frontend.failure or EngineError("engine", "is closed"))
            self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _prompts(self, prompt: str | Sequence[int], params: Mapping[str, Any]) -> list[Prompt]:
        given = dict(params)
        logprobs = given.pop("logprobs", None)
        unknown = given.keys() - set(GenerationFields.__struct_fields__)
        if unknown:
            raise ConfigError("Engine", f"unknown parameter {sorted(unknown)[0]!r}", "see Engine.generate")
        try:
            fields = msgspec.convert(given, GenerationFields)
        except msgspec.ValidationError as error:
            raise ConfigError("Engine", str(error), "see Engine.generate") from None
        if isinstance(prompt, str) and self.model.tokenizer is None:
            raise ConfigError("Engine", "the model was loaded without a tokenizer", "give token ids")
        ids = self.model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)  # type: ignore[union-attr]
        check_ids(ids, self.model, "prompt")
        check_length(len(ids), self.model, "prompt")
        return build_prompts(ids, fields, self.model, 16, logprobs)

    def _open_in_turn(self, prompt: Prompt) -> Generation:
        """Open it once the queue has room; the condition is held."""
        while True:
            try:
                return self._frontend.open(prompt)
            except QueueFull:
                self._news.wait()

    def _completion(self, generation: Generation) -> Completion:
        """Wait for its end; the condition is held."""
        whole = Piece()
        while not whole.finished:
            whole.merge(_checked(self._wait(generation)))
        return Completion(
            text=whole.text,
            token_ids=whole.token_ids,
            finish_reason=whole.finish_reason or "",
            prompt_tokens=generation.prompt_tokens,
            cached_tokens=generation.cached_tokens,
            logprobs=whole.logprobs,
        )

    def _wait(self, generation: Generation) -> Piece:
        """The next piece; the condition is held."""
        while (piece := generation.take()) is None:
            self._news.wait()
        return piece

    def _cancel(self, generation: Generation) -> None:
        with self._news:
            if not generation.ended:
                self._frontend.cancel(generation)

    def _pump(self) -> None:
        while True:
            batch = self._deltas.drain(0.1)
            with self._news:
                for frames in batch:
                    self._frontend.feed(decode(frames[0]))
                self._news.notify_all()
            if not self._threads[0].is_alive() and not batch:
                break

    def _compute(self, run: Run, inbox: Receiver, outbox: Sender) -> None:
        doing = STARTING
        try:
            from srtkit.engine.build import build_engine  # torch, in the thread that computes

            built = build_engine(run.settings, run.loaded, run.facts, run.config, run.path, lambda done, total: None)
            loop = built.loop(inbox, outbox)
            self._ready.set()
            doing = STEPPING
            loop.run()
            built.close()
        except Exception as error:
            with self._news:
                self._frontend.fail(blame(error, run.wiring, doing))
                self._news.notify_all()
            self._ready.set()


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    loop.call_soon_threadsafe(woken.set)


def _listed(prompts: Prompts | str) -> Sequence[str | Sequence[int]]:
    return [prompts] if isinstance(prompts, str) else prompts


def _checked(piece: Piece) -> Piece:
    if piece.finish_reason == "error":
        raise EngineError("engine", piece.error)
    return piece
