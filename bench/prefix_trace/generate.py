"""Makes a trace of requests from a seed: who talks, what they send, when requests start and end.

Knows no cache and no page. Not modelled: requests sent again, edits of earlier turns, contexts cut or summarised,
the hour of the day.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.prefix_trace import workload as w
from srtkit.spec.step_plan import Ints

Random = np.random.Generator
Visits = Iterator[list["Session"]]
"""Without end: what sessions somebody brings at a time."""


@dataclass(frozen=True, eq=False)
class Request:
    """`ids` int32 [n]: `prompt` tokens, then the answer. What a request adds to a prompt before it is its own."""

    ids: Ints
    prompt: int
    kind: str
    priority: int = 0

    @property
    def computed(self) -> int:
        """Tokens with KV at the end: the last one sampled never went through the model."""
        return len(self.ids) - 1


@dataclass(frozen=True)
class Event:
    """A request starts, or ends."""

    request: int
    starts: bool


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests in the order they start, and all starts and ends in the order they happen."""

    requests: Sequence[Request]
    events: Sequence[Event]

    def about(self) -> dict[str, dict[str, int]]:
        """Requests and their mean lengths in tokens, of each kind."""
        facts = {}
        for kind in w.SHARES:
            mine = [one for one in self.requests if one.kind == kind]
            if mine:
                prompt = sum(one.prompt for one in mine) / len(mine)
                answer = sum(len(one.ids) - one.prompt for one in mine) / len(mine)
                facts[kind] = {"requests": len(mine), "prompt": round(prompt), "answer": round(answer)}
        return facts


@dataclass(frozen=True)
class Turn:
    """A request is `ids[:prompt]` of its session, its answer goes up to `stop`.

    It takes `takes` seconds once it runs, and the session's next request comes `wait` seconds after its end.
    """

    prompt: int
    stop: int
    takes: float
    wait: float


@dataclass(frozen=True, eq=False)
class Session:
    """Somebody's turns, the first `after` seconds after a visit began; every prompt begins with all before it."""

    kind: str
    ids: Ints
    turns: Sequence[Turn]
    after: float = 0.0


class Writer:
    """Puts a session together, turn by turn, until its context is full."""

    def __init__(self, random: Random, start: Ints) -> None:
        self._random = random
        self._pieces, self._length = [start], len(start)
        self.turns: list[Turn] = []

    def turn(self, asked: int, answered: int, wait: float) -> bool:
        """A message and its answer, in tokens. False: no room, nothing written. A first message is cut to fit."""
        room = w.MAX_CONTEXT - self._length - answered
        if asked > room and self.turns:
            return False
        asked = min(asked, room)
        prompt, stop = self._length + asked, self._length + asked + answered
        self._pieces.append(tokens(self._random, stop - self._length))
        self._length = stop
        self.turns.append(Turn(prompt, stop, asked / w.PREFILL_RATE + answered / w.DECODE_RATE, wait))
        return True

    def ids(self) -> Ints:
        """All that was written."""
        return np.concatenate(self._pieces)


def tokens(random: Random, n: int) -> Ints:
    """Text that nobody else has."""
    return random.integers(0, w.VOCABULARY, n, dtype=np.int32)


def human_wait(random: Random, answered: int) -> float:
    """From an answer's end to the next message, at least a second: the source counts from one request to the next."""
    return max(1.0, w.HUMAN_GAP.draw(random) - answered / w.DECODE_RATE)


def chats(random: Random) -> Visits:
    """People who talk with an application."""
    prompts = [tokens(random, w.CHAT_PROMPT_TOKENS.tokens(random)) for _ in range(w.CHAT_PROMPTS)]
    popularity = w.zipf(len(prompts))
    while True:
        writer = Writer(random, prompts[random.choice(len(prompts), p=popularity)])
        turns = w.CHAT_TALKER_TURNS if random.random() < w.CHAT_TALKERS else w.CHAT_TURNS
        for _ in range(random.geometric(1 / turns)):
            answered = w.CHAT_ANSWER_TOKENS.tokens(random)
            if not writer.turn(w.CHAT_USER_TOKENS.tokens(random), answered, human_wait(random, answered)):
                break
        yield [Session("chat", writer.ids(), writer.turns)]


def batches(random: Random) -> Visits:
    """Programs that ask one question after another below the same instructions and examples."""
    templates = []
    for _ in range(w.BATCH_PROMPTS):
        instructions = tokens(random, w.BATCH_PROMPT_TOKENS.tokens(random))
        for _ in range(w.BATCH_EXAMPLE_SETS):
            count = random.integers(*w.BATCH_EXAMPLES, endpoint=True)
            examples = sum(w.BATCH_EXAMPLE_TOKENS.tokens(random) for _ in range(count))
            templates.append(np.concatenate((instructions, tokens(random, examples))))
    popularity = random.permutation(w.zipf(len(templates)))
    while True:
        template, after, calls = templates[random.choice(len(templates), p=popularity)], 0.0, []
        for _ in range(random.geometric(1 / w.BATCH_CALLS)):
            writer = Writer(random, template)
            writer.turn(w.BATCH_QUESTION_TOKENS.tokens(random), w.BATCH_ANSWER_TOKENS.tokens(random), 0)
            calls.append(Session("batch", writer.ids(), writer.turns, after))
            after += random.exponential(w.BATCH_GAP)
        yield calls


def agents(random: Random) -> Visits:
    """Programs that call tools in a loop for somebody who gives them one task after another."""
    prompts = [tokens(random, w.AGENT_PROMPT_TOKENS.tokens(random)) for _ in range(w.AGENT_PROMPTS)]
    popularity = w.zipf(len(prompts))
    while True:
        writer = Writer(random, prompts[random.choice(len(prompts), p=popularity)])
        room = True
        for _ in range(random.geometric(1 / w.AGENT_TASKS)):
            steps = int(random.geometric(1 / (1 + w.AGENT_STEPS)))
            for step in range(steps):
                asked = (w.AGENT_TOOL_TOKENS if step else w.AGENT_TASK_TOKENS).tokens(random)
                answered = w.AGENT_ANSWER_TOKENS.tokens(random)
                last = step == steps - 1
                wait = human_wait(random, answered) if last else w.AGENT_TOOL_SECONDS.draw(random)
                room = room and writer.turn(asked, answered, wait)
        yield [Session("agent", writer.ids(), writer.turns)]


def make_trace(seed: int, requests: int) -> Trace:
    """About so many requests; the same for the same arguments. Sessions still under way at the end are cut off."""
    random = np.random.default_rng(seed)
    span = requests / w.RATE
    arrivals: list[tuple[float, Session]] = []
    for kind, make in (("chat", chats), ("batch", batches), ("agent", agents)):
        visits, missing = [], w.SHARES[kind] * requests
        for visit in make(random):
            visits.append(visit)
            missing -= sum(len(session.turns) for session in visit)
            if missing <= 0:
                break
        gaps = random.gamma(w.ARRIVAL_SHAPE, size=len(visits) + 1)
        begins = (span * np.cumsum(gaps[:-1]) / gaps.sum()).tolist()
        arrivals += [(at + one.after, one) for at, visit in zip(begins, visits, strict=True) for one in visit]
    return play(arrivals, span)


def play(arrivals: Sequence[tuple[float, Session]], until: float) -> Trace:
    """Serve the sessions first come, first served, with as many running at once as the server takes."""
    requests: list[Request] = []
    events: list[Event] = []
    waiting: deque[tuple[int, int]] = deque()
    # (time, order, session, turn, request): an arrival has request -1, else it is that request's end
    agenda = [(at, n, n, 0, -1) for n, (at, _) in enumerate(arrivals)]
    heapq.heapify(agenda)
    order, running = len(agenda), 0
    while agenda and agenda[0][0] < until:
        now, _, number, position, request = heapq.heappop(agenda)
        if request < 0:
            waiting.append((number, position))
        else:
            events.append(Event(request, starts=False))
            running -= 1
            turns = arrivals[number][1].turns
            if position + 1 < len(turns):
                order += 1
                heapq.heappush(agenda, (now + turns[position].wait, order, number, position + 1, -1))
        while waiting and running < w.MAX_RUNNING:
            number, position = waiting.popleft()
            session = arrivals[number][1]
            turn = session.turns[position]
            events.append(Event(len(requests), starts=True))
            order, running = order + 1, running + 1
            heapq.heappush(agenda, (now + turn.takes, order, number, position, len(requests)))
            requests.append(Request(session.ids[: turn.stop], turn.prompt, session.kind, w.PRIORITY[session.kind]))
    return Trace(requests, events)
