"""Conversations in turns that do not all fit: every one has gone from the device's pages when its next turn comes.

One round asks all of them once, together and in order, so that a cache that evicts what was used longest ago never has
the one that comes. Knows no cache and no device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.gpu.engine import Bare

WORKING_SETS = 4
"""How often the device's pages are needed."""


@dataclass(frozen=True)
class Load:
    """`sessions` begin with `context` tokens; each of `rounds` more adds `said` ones, and every answer has `answer`."""

    sessions: int
    context: int
    said: int
    answer: int
    rounds: int

    @property
    def longest(self) -> int:
        """Tokens of a conversation after the last round."""
        return self.context + self.rounds * self.said + (self.rounds + 1) * self.answer

    def gib(self, bytes_per_token: int) -> float:
        """The working set: KV of all conversations."""
        return self.sessions * self.longest * bytes_per_token / 2**30


@dataclass
class Talk:
    """The conversations so far, with one engine."""

    engine: Bare
    load: Load

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(7)
        self._said = [self._words(self.load.context) for _ in range(self.load.sessions)]

    def _words(self, n: int) -> list[int]:
        words: list[int] = self._random.integers(1, 256, n).tolist()
        return words

    def round(self, sessions: int | None = None) -> tuple[float, int]:
        """A turn of the first `sessions` (of all): seconds until the last answer, and tokens asked and answered."""
        talking = self._said[:sessions]
        seconds, answers = self.engine.answers([(ids, self.load.answer) for ids in talking])
        tokens = sum(map(len, talking)) + sum(map(len, answers))
        for ids, answer in zip(talking, answers, strict=True):
            ids += answer + self._words(self.load.said)
        return seconds, tokens

    def rounds(self) -> dict[str, float]:
        """The first round, then those that are measured: tokens a second, and the share of prompts that was reused."""
        self.round()
        counters = self.engine.built.scheduler.counters
        asked, reused = counters.prompt_tokens, counters.cached_tokens
        taken = [self.round() for _ in range(self.load.rounds)]
        return {
            "tokens_per_s": round(sum(tokens for _, tokens in taken) / sum(seconds for seconds, _ in taken), 1),
            "reused": round((counters.cached_tokens - reused) / (counters.prompt_tokens - asked), 4),
            "s": round(sum(seconds for seconds, _ in taken), 3),
        }
