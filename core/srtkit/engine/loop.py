"""The one loop, for every mode: absorb, plan, forward, commit an earlier step, send. Start reading here.

`depth` is how many steps may be launched and not yet committed when the next one is planned: 0 where a
launch waits for its result (CPU), 1 by default elsewhere. It is data: no other loop exists.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from srtkit.engine.runner import Handle, ModelRunner
from srtkit.scheduler.scheduler import Scheduler
from srtkit.spec.messages import Abort, Control, Message, Reply, Stats, Submit, decode, encode
from srtkit.spec.transport import Receiver, Sender

STATS_SECONDS = 0.5
POLL_SECONDS = 0.001  # how long to wait for messages where only copies are under way


@dataclass(eq=False)
class EngineLoop:
    """Scheduler and runner joined by channels. Runs in the thread that computes."""

    scheduler: Scheduler
    runner: ModelRunner
    inbox: Receiver
    outbox: Sender
    depth: int
    info: Callable[[], dict[str, Any]]
    on_idle: Callable[[], object]
    _in_flight: deque[Handle] = field(default_factory=deque, init=False)
    _stopping: bool = field(default=False, init=False)
    _stats_sent: float = field(default=0.0, init=False)
    _idle: bool = field(default=False, init=False)  # and nothing has come since the last figures were sent

    def run(self) -> None:
        """Until a `shutdown` control message; sequences still running then are dropped."""
        while not self._stopping:
            self.turn()
        for handle in self._in_flight:  # the device still works for them, and its memory goes next
            self.runner.collect(handle)

    def turn(self) -> None:
        """One round of the loop."""
        busy = self.scheduler.has_work or bool(self._in_flight)
        moving = bool(self.scheduler.book.tiers.under_way)
        rested = self._idle  # in the turn before, too: copies that the last commit asked for have been started
        if not busy and not moving and not self._idle:
            self._send_stats()
            self.on_idle()
            self._idle = True
        wait = POLL_SECONDS if moving and not self._in_flight else 0.0
        self._idle &= not self._absorb(wait if busy or moving or not rested else None)
        self._complete()
        plan = self.scheduler.plan()
        if plan.rows:
            self._in_flight.append(self.runner.forward(plan))
        else:
            self.runner.program.move(plan)
        while self._in_flight and (len(self._in_flight) > self.depth or not plan.rows):
            handle = self._in_flight.popleft()
            output = self.runner.collect(handle)
            self._complete()
            self._send(self.scheduler.commit(handle.plan, output))
        if news := self.scheduler.news():
            self._send(news)
        if busy and time.monotonic() - self._stats_sent > STATS_SECONDS:
            self._send_stats()

    def _complete(self) -> None:
        """Outcomes of transfers, of all that the last step collected has read among them."""
        if mover := self.runner.program.mover:
            self.scheduler.complete(*mover.finished())

    def _absorb(self, wait: float | None) -> bool:
        """Take all messages that have come; whether there were any."""
        batch = self.inbox.drain(wait)
        take: dict[type, Any] = {Submit: self.scheduler.submit, Abort: self.scheduler.abort, Control: self._control}
        for message in (decode(frames[0]) for frames in batch):
            take[type(message)](message)
        return bool(batch)

    def _control(self, message: Control) -> None:
        book = self.scheduler.book
        operations: dict[str, Callable[..., Any]] = {"info": self.info, "shutdown": self._stop}
        operations |= {"flush_cache": book.room.flush, "cache": book.room.figures, "storage": book.cache.use_storage}
        try:
            reply = Reply(message.id, operations[message.op](**message.args))
        except (KeyError, TypeError) as problem:  # both come from whoever asks
            reply = Reply(message.id, None, f"unknown operation or arguments: {message.op!r}, {problem}")
        self._send(reply)

    def _stop(self) -> None:
        self._stopping = True

    def _send(self, message: Message) -> None:
        self.outbox.send([encode(message)])

    def _send_stats(self) -> None:
        self._stats_sent = time.monotonic()
        scheduler, pool = self.scheduler, self.scheduler.book.main.pool
        self._send(
            Stats(
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                pages_used=pool.in_use + pool.retiring,
                pages_total=pool.total,
                cached_pages=pool.cached,
                tiers=scheduler.book.cache.stats().tiers,
                eager_steps=self.runner.eager_steps,
                **asdict(scheduler.counters),
            )
        )
