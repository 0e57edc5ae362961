"""What the routes share: the frontend of one engine, the requests that run, and the pump that feeds both.

Knows no route and no form of an answer. Everything but the pump's thread runs in the server's event loop.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from srtkit.config.hints import did_you_mean
from srtkit.config.settings import ServerSection
from srtkit.serve.errors import RequestError
from srtkit.serve.frontend import Frontend
from srtkit.serve.generation import Generation, Piece, Prompt
from srtkit.serve.metrics import Metrics
from srtkit.serve.prompts import ServedModel
from srtkit.spec.errors import EngineError, SrtError, TransportTimeout
from srtkit.spec.messages import Failed, Message, Reply, decode
from srtkit.spec.transport import Receiver

T = TypeVar("T")

# How long the engine may take to answer what is no request of a client.
ENGINE_SECONDS = 30.0
_PUMP_SECONDS = 0.2
_MAX_WARNINGS, _LONG_NAME = 100, 40
_log = logging.getLogger(__name__)


class Job:
    """One HTTP request under way: its generations, `n` for every prompt, in order. `running` are not over yet."""

    def __init__(self, id_: str, generations: Sequence[Generation], n: int, arrived: float, metrics: Metrics) -> None:
        self.id = id_
        self.created = int(time.time())
        self.generations = generations
        self.running = len(generations)
        self._n = n
        self._arrived = arrived
        self._metrics = metrics
        self._last = [0.0] * len(generations)  # when each had news; 0 before its first token
        self._woken = asyncio.Event()
        for generation in generations:
            generation.on_news = self._woken.set

    async def news(self) -> list[tuple[int, Piece]]:
        """Wait for something new of any generation; all that is new, by index."""
        while not (found := [(i, piece) for i, one in enumerate(self.generations) if (piece := one.take())]):
            self._woken.clear()
            await self._woken.wait()
        now = time.monotonic()
        for index, piece in found:
            if piece.token_ids:
                last, self._last[index] = self._last[index], now
                if last:
                    self._metrics.itl.observe(now - last)
                else:
                    self._metrics.ttft.observe(now - self._arrived)
            if piece.finish_reason is not None:
                self.running -= 1
                self._metrics.e2e.observe(now - self._arrived)
                self._metrics.ended(piece.finish_reason)
        return found

    async def whole(self) -> list[Piece]:
        """Wait for the ends; the complete pieces, by index."""
        pieces = [Piece() for _ in self.generations]
        while self.running:
            for index, piece in await self.news():
                pieces[index].merge(piece)
        return pieces

    def usage(self) -> dict[str, Any]:
        """OpenAI's figures so far. A prompt counts once, however many choices it has."""
        firsts = self.generations[:: self._n]
        prompt = sum(one.prompt_tokens for one in firsts)
        completion = sum(one.completion_tokens for one in self.generations)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        }


@dataclass(eq=False)
class Service:
    """One served model. `info` is what /server_info says of the run; `degraded` names fallbacks in use.

    `jobs` are the requests that run, by id.
    """

    frontend: Frontend
    model: ServedModel
    info: Mapping[str, Any]
    settings: ServerSection
    degraded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.metrics = Metrics(lambda: self.frontend.stats, bool(self.degraded))
        self.jobs: dict[str, Job] = {}
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._warned: set[str] = set()

    # -- from the engine ------------------------------------------------------------------------

    def feed(self, messages: Sequence[Message]) -> None:
        """Take messages of the engine, in order."""
        try:
            for message in messages:
                if isinstance(message, Failed):
                    self.fail(message.error())
                elif not isinstance(message, Reply):
                    self.frontend.feed(message)
                elif (waiter := self._replies.pop(message.id, None)) and not waiter.done():
                    waiter.set_result(message)
        except Exception as error:  # whatever it was, nobody may be left waiting
            self.fail(error if isinstance(error, SrtError) else EngineError("server", f"lost a message: {error!r}"))

    def fail(self, error: SrtError) -> None:
        """The engine is gone: everything open ends with the error, and so does everything that comes."""
        self.frontend.fail(error)
        for waiter in self._replies.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._replies.clear()

    # -- for the routes -------------------------------------------------------------------------

    def open(self, prompts: Sequence[Prompt], id_: str, arrived: float, n: int = 1) -> Job:
        """Send all prompts of a request, or none. `arrived` is `time.monotonic()` of the request."""
        if len(prompts) > self.frontend.max_waiting:
            cause = f"{len(prompts)} sequences at once are more than ever may wait ({self.frontend.max_waiting})"
            raise RequestError("", cause, "send them in several requests", code="too_many_sequences")
        if id_ in self.jobs:
            raise RequestError("rid", f"a request {id_!r} is running", "choose another")
        generations: list[Generation] = []
        try:
            for prompt in prompts:
                generations.append(self.frontend.open(prompt))
        except SrtError:
            self.frontend.cancel(generations)
            raise
        job = self.jobs[id_] = Job(id_, generations, n, arrived, self.metrics)
        return job

    def close(self, job: Job) -> None:
        """The request is over; what still runs of it is cancelled, as its client is gone."""
        self.jobs.pop(job.id, None)
        self.frontend.cancel(job.generations)

    def abort(self, id_: str | None) -> int:
        """End a request, or all of them (None); they answer with what there is. How many there were."""
        jobs = list(self.jobs.values()) if id_ is None else [self.jobs[id_]] if id_ in self.jobs else []
        for job in jobs:
            self.frontend.cancel(job.generations)
        return len(jobs)

    async def control(self, op: str) -> Any:
        """Have the engine do an operation; its answer. Raises `EngineError` or `TransportTimeout`."""
        number = self.frontend.control(op)
        waiter = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            reply = await in_time(waiter)
        finally:
            self._replies.pop(number, None)
        if reply.error:
            raise EngineError("engine", reply.error)
        return reply.value

    def unknown_field(self, name: str, known: Collection[str]) -> None:
        """A request field that nobody knows, beside the known ones: refused, or one warning for each name."""
        hint = did_you_mean(name.rpartition(".")[2][:_LONG_NAME], known)
        if self.settings.strict_fields:
            raise RequestError(name, "unknown field", hint or "leave it out", code="unknown_parameter")
        if name not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(name)
            _log.warning("requests hold the unknown field %r; it is ignored%s", name, hint and f"; {hint}")


async def in_time(answer: Awaitable[T]) -> T:
    """What the engine answers. Raises `TransportTimeout` when that takes longer than `ENGINE_SECONDS`."""
    try:
        return await asyncio.wait_for(answer, ENGINE_SECONDS)
    except TimeoutError:
        raise TransportTimeout("engine", f"it did not answer within {ENGINE_SECONDS:g} s") from None


def new_id(prefix: str) -> str:
    """An id for an answer."""
    return f"{prefix}-{uuid4().hex}"


def start_pump(receiver: Receiver, service: Service, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Feed the service from a thread that waits for the engine; the result ends it, to be called in the loop's life.

    All messages that have arrived cost the loop one callback. The receiver is that thread's until it has ended.
    """
    stop = threading.Event()

    def pump() -> None:
        try:
            while not stop.is_set():
                if batch := receiver.drain(_PUMP_SECONDS):
                    loop.call_soon_threadsafe(service.feed, [decode(frames[0]) for frames in batch])
        except Exception as error:  # of any kind: without a pump every client would wait for ever
            failure = error if isinstance(error, SrtError) else EngineError("engine", f"sent nonsense: {error!r}")
            loop.call_soon_threadsafe(service.fail, failure)

    thread = threading.Thread(target=pump, name="srtkit-pump", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end
