"""Continuations through `Engine`: greedy ones are those of transformers, seeded ones are always the same.

However they are computed. `check` runs engines that cover every pair of settings, `full` every combination.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from srtkit import Engine
from tests.parity.conftest import FLOAT32, QUICKSTART
from tests.parity.reference import Case

FACTORS: dict[str, tuple[str, ...]] = {
    "prefix_cache.use": ("radix", "chunk"),
    "scheduler.chunk_tokens": ("2048", "32"),
    "memory.page_size": ("16", "7"),
    "scheduler.depth": ("0", "1", "2"),
    "memory.kv_gib": ("0.5", "0.03"),  # room for all, and for a few: then some wait and some are put back
}
PAIRWISE = (
    ("radix", "2048", "16", "0", "0.5"),
    ("chunk", "32", "7", "0", "0.03"),
    ("radix", "2048", "7", "1", "0.03"),
    ("chunk", "32", "16", "1", "0.5"),
    ("radix", "32", "16", "2", "0.03"),
    ("chunk", "2048", "7", "2", "0.5"),
)
ALL = list(itertools.product(*FACTORS.values()))
SHORT = 16
"""How many prompts, shortest first, the cheap trials take: a batch of this size."""

SEEDED: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 11, "n": 2},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "seed": 2**62},
    {"temperature": 1.3, "min_p": 0.05, "seed": 5},
]
SEEDED_TOKENS = 16

pytestmark = pytest.mark.model


def test_the_cases_cover_every_pair() -> None:
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(case[i], case[j]) for case in PAIRWISE} == set(itertools.product(first, second))


@dataclass(frozen=True)
class Trial:
    """An engine, the prompts it continues, and for how many tokens; `alone` is the prompt that it continues alone."""

    engine: Engine
    cases: list[Case]
    tokens: int
    alone: Case


def _parameters() -> Iterator[Any]:
    for combination in PAIRWISE:
        yield pytest.param((combination, combination == PAIRWISE[0]), id="-".join(combination))
    for combination in ALL:
        if combination != PAIRWISE[0]:
            yield pytest.param((combination, True), id="-".join(combination) + "-whole", marks=pytest.mark.full)


@pytest.fixture(scope="module", params=_parameters())
def trial(request: pytest.FixtureRequest, cases: list[Case], plain_engine: Engine) -> Iterator[Trial]:
    """All prompts and tokens; but only the first of the `check` engines does that much."""
    combination, whole = request.param
    number = ALL.index(combination)
    if combination == PAIRWISE[0]:
        plain_engine.flush_cache()
        yield Trial(plain_engine, cases, 64, cases[number])
        return
    short = sorted(cases, key=lambda case: len(case.ids))[:SHORT]
    with Engine.from_config(QUICKSTART, FLOAT32 | dict(zip(FACTORS, combination, strict=True))) as engine:
        if whole:
            yield Trial(engine, cases, 64, cases[number % len(cases)])
        else:
            yield Trial(engine, short, 32, short[number % SHORT])


@pytest.fixture(scope="module")
def seeded_alone(plain_engine: Engine, cases: list[Case]) -> list[list[int]]:
    """Seeded draws, each made with nothing else running."""
    return [
        completion.token_ids
        for params in SEEDED
        for i in range(params.get("n", 1))
        for completion in plain_engine.generate(
            [cases[0].ids], **{**params, "n": 1, "seed": params["seed"] + i}, max_tokens=SEEDED_TOKENS, ignore_eos=True
        )
    ]


def greedy(trial: Trial, cases: list[Case]) -> list[list[int]]:
    completions = trial.engine.generate(
        [case.ids for case in cases], temperature=0, max_tokens=trial.tokens, ignore_eos=True
    )
    return [completion.token_ids for completion in completions]


async def together(trial: Trial, prompt: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy and seeded continuations, computed in the same steps."""
    greedy_ones, *seeded_ones = await asyncio.gather(
        asyncio.to_thread(greedy, trial, trial.cases),
        *(trial.engine.agenerate([prompt], **params, max_tokens=SEEDED_TOKENS, ignore_eos=True) for params in SEEDED),
    )
    return greedy_ones, [completion.token_ids for completions in seeded_ones for completion in completions]


def differences(cases: list[Case], found: list[list[int]], n: int) -> dict[str, Any]:
    """By prompt: at which of `n` tokens a continuation leaves the reference, and the two tokens there."""
    return {
        case.name: next((i, a, b) for i, (a, b) in enumerate(zip(case.tokens[:n], tokens, strict=True)) if a != b)
        for case, tokens in zip(cases, found, strict=True)
        if tokens != case.tokens[:n]
    }


def test_in_a_batch(trial: Trial, cases: list[Case], seeded_alone: list[list[int]]) -> None:
    found, seeded = asyncio.run(together(trial, cases[0].ids))
    assert differences(trial.cases, found, trial.tokens) == {}
    assert seeded == seeded_alone


def test_alone(trial: Trial) -> None:
    """Another prompt with every engine; radix lends it what the batch has left."""
    assert differences([trial.alone], greedy(trial, [trial.alone]), trial.tokens) == {}
