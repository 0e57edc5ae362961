"""The client side of one engine: requests go out, deltas come back to their generations. What all routes share.

Knows which row slot belongs to which request; no route and no form of an answer. All but the pump's thread runs in one
event loop.
"""

import asyncio
import itertools
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import numpy as np
from starlette.requests import Request

from srtkit.config.hints import did_you_mean
from srtkit.config.settings import ServerSection
from srtkit.serve.generation import Generation, Job, Prompt, TokenLogprob
from srtkit.serve.prompts import ServedModel
from srtkit.serve.requests import json_body, parse
from srtkit.spec import messages
from srtkit.spec.errors import EngineError, RequestError, SrtError, TransportTimeout
from srtkit.spec.routes import Event
from srtkit.spec.transport import Receiver, Sender

T = TypeVar("T")
Fields = TypeVar("Fields", bound=msgspec.Struct)

# How long the engine may take to answer what is no request of a client.
ENGINE_SECONDS = 30.0
_PUMP_SECONDS = 0.2
_MAX_WARNINGS, _LONG_NAME = 100, 40
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Service:
    """One served model. `info` is what /server_info says of the run; `degraded` names fallbacks in use.

    `jobs` are the requests that run, by id; `stats` the engine's latest figures; `failure` why it is gone.
    """

    sender: Sender
    model: ServedModel
    info: Mapping[str, Any]
    settings: ServerSection
    degraded: tuple[str, ...] = ()
    max_waiting: int = sys.maxsize

    def __post_init__(self) -> None:
        self.stats: messages.Stats | None = None
        self.failure: SrtError | None = None
        self.jobs: dict[str, Job] = {}
        self.watchers: list[Callable[[Event], None]] = []
        self._ids = itertools.count(1)
        self._open: dict[int, Generation] = {}  # by request id, until its end has come from the engine
        self._slots: dict[int, Generation] = {}
        self._waiting = 0
        self._replies: dict[int, asyncio.Future[messages.Reply]] = {}
        self._warned: set[str] = set()

    # -- from the engine ------------------------------------------------------------------------

    def feed(self, batch: Sequence[messages.Message]) -> None:
        """Take messages of the engine, in order."""
        try:
            for message in batch:
                self._take(message)
        except Exception as error:  # whatever it was, nobody may be left waiting
            self.fail(error if isinstance(error, SrtError) else EngineError("server", f"lost a message: {error!r}"))

    def fail(self, error: SrtError) -> None:
        """The engine is gone: everything open ends with the error, and so does everything that comes."""
        self.failure = error
        for generation in self._open.values():
            generation.finish("error", str(error))
        for waiter in self._replies.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._open.clear()
        self._slots.clear()
        self._replies.clear()
        self._waiting = 0

    def _take(self, message: messages.Message) -> None:
        match message:
            case messages.Deltas():
                self._deltas(message)
            case messages.Stats():
                self.stats = message
            case messages.Failed():
                self.fail(message.error())
            case messages.Reply():
                if (waiter := self._replies.pop(message.id, None)) and not waiter.done():
                    waiter.set_result(message)

    def _deltas(self, deltas: messages.Deltas) -> None:
        for started in deltas.started:
            if (generation := self._open.get(started.rid)) is None:
                continue
            self._slots[started.slot] = generation
            if not generation.started:  # a retracted sequence starts again
                generation.started = True
                generation.cached_tokens = started.cached_tokens
                self._waiting -= 1
        logprobs = {one.slot: _token_logprob(one) for one in deltas.logprobs}
        slots, counts = messages.ints(deltas.slots).tolist(), messages.ints(deltas.counts).tolist()
        ids, at = messages.ints(deltas.ids).tolist(), 0
        for slot, count in zip(slots, counts, strict=True):
            generation = self._slots.get(slot)
            new, at = ids[at : at + count], at + count
            if generation is None or generation.ended:
                continue
            if generation.push(new, [logprobs[slot]] if slot in logprobs else []):
                self.send(messages.Abort(generation.rid, "stop"))
        for finished in deltas.finished:
            if (generation := self._open.pop(finished.rid, None)) is None:
                continue
            if not generation.started:
                self._waiting -= 1
            if self._slots.get(finished.slot) is generation:
                del self._slots[finished.slot]
            generation.finish(finished.reason, finished.detail)

    # -- for the routes -------------------------------------------------------------------------

    def send(self, message: messages.Message) -> None:
        """Send a message to the engine. Raises its failure, if it has failed."""
        if self.failure is not None:
            raise self.failure
        self.sender.send([messages.encode(message)])

    def open(self, prompts: Sequence[Prompt], id_: str, arrived: float, n: int = 1) -> Job:
        """Send all prompts of a request, or none. `arrived` is `time.monotonic()` of the request."""
        if len(prompts) > self.max_waiting:
            cause = f"{len(prompts)} sequences at once are more than ever may wait ({self.max_waiting})"
            raise RequestError("", cause, "send them in several requests", code="too_many_sequences")
        if id_ in self.jobs:
            raise RequestError("rid", f"a request {id_!r} is running", "choose another")
        if self._waiting + len(prompts) > self.max_waiting:
            cause = f"{self._waiting} requests are waiting already"
            raise RequestError("", cause, "try again later", status=503, code="queue_full")
        generations = [Generation(next(self._ids), prompt, self.model.tokenizer) for prompt in prompts]
        job = Job(id_, generations, n, arrived, self.tell)
        try:
            for prompt, generation in zip(prompts, generations, strict=True):
                ids, fields = np.asarray(prompt.ids, "<i4").tobytes(), prompt.fields
                space = b"\xff".join((fields.cache_salt.encode(), fields.extra_key.encode())).rstrip(b"\xff")
                self.send(messages.Submit(generation.rid, ids, prompt.sampling, space, fields.priority))
                self._open[generation.rid] = generation
                self._waiting += 1
        except SrtError:
            self._cancel(generations)
            raise
        self.jobs[id_] = job
        return job

    def close(self, job: Job) -> None:
        """The request is over; what still runs of it is cancelled, as its client is gone."""
        self.jobs.pop(job.id, None)
        self._cancel(job.generations)

    def abort(self, id_: str | None) -> int:
        """End a request, or all of them (None); they answer with what there is. How many there were."""
        jobs = list(self.jobs.values()) if id_ is None else [self.jobs[id_]] if id_ in self.jobs else []
        for job in jobs:
            self._cancel(job.generations)
        return len(jobs)

    def _cancel(self, generations: Iterable[Generation]) -> None:
        """End those that still run towards their client at once; the engine frees their pages at its next step."""
        for generation in generations:
            if generation.rid in self._open and not generation.ended:
                self.send(messages.Abort(generation.rid, "abort"))
            generation.finish("abort")

    async def control(self, op: str, **args: Any) -> Any:
        """Have the engine do an operation; its answer. Raises `EngineError` or `TransportTimeout`."""
        number = next(self._ids)
        self.send(messages.Control(number, op, args))
        waiter = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            reply = await in_time(waiter)
        finally:
            self._replies.pop(number, None)
        if reply.error:
            raise EngineError("engine", reply.error)
        return reply.value

    def text(self, ids: Sequence[int]) -> str | None:
        """The text of token ids; None without a tokenizer."""
        return tokenizer.decode(ids, skip_special=False) if (tokenizer := self.model.tokenizer) else None

    async def read(self, request: Request, kind: type[Fields]) -> Fields:
        """A request's JSON body. Raises `RequestError`."""
        return parse(await json_body(request), kind, self.unknown_field)

    def tell(self, event: Event) -> None:
        """Let all watchers know."""
        for watcher in self.watchers:
            watcher(event)

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
                    loop.call_soon_threadsafe(service.feed, [messages.decode(frames[0]) for frames in batch])
        except Exception as error:  # of any kind: without a pump every client would wait for ever
            failure = error if isinstance(error, SrtError) else EngineError("engine", f"sent nonsense: {error!r}")
            loop.call_soon_threadsafe(service.fail, failure)

    thread = threading.Thread(target=pump, name="srtkit-pump", daemon=True)
    thread.start()

    def end() -> None:
        stop.set()
        thread.join()

    return end


def _token_logprob(message: messages.Logprobs) -> TokenLogprob:
    ids = messages.ints(message.ids).tolist()
    values = np.frombuffer(message.values, "<f4").tolist()
    return TokenLogprob(ids[0], values[0], tuple(zip(ids[1:], values[1:], strict=True)))
