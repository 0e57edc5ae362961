"""Continuations through `Engine`: greedy ones are those of transformers, seeded ones are always the same.

However they are computed. `check` runs engines that cover every setting, `full` every pair and every combination.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from srtkit import Engine
from tests.parity.conftest import FLOAT32, ONE_THREAD, QUICKSTART
from tests.parity.reference import Case

FACTORS: dict[str, tuple[str, ...]] = {
    "prefix_cache.use": ("radix", "chunk"),
    "scheduler.chunk_tokens": ("2048", "32"),
    "memory.page_size": ("16", "7"),
    "scheduler.depth": ("0", "1", "2"),
    "memory.kv_gib": ("0.5", "0.03"),  # room for all, and for a few: then some wait and some are put back
}
PAIRWISE: tuple[tuple[str, ...], ...] = (
    ("radix", "2048", "16", "0", "0.5"),
    ("chunk", "32", "7", "0", "0.03"),
    ("radix", "2048", "7", "1", "0.03"),
    ("chunk", "32", "16", "1", "0.5"),
    ("radix", "32", "16", "2", "0.03"),
    ("chunk", "2048", "7", "2", "0.5"),
)
EVERY = {PAIRWISE[0], PAIRWISE[1], PAIRWISE[2], PAIRWISE[4]}
"""Those of `check`."""
ALL = list(itertools.product(*FACTORS.values()))
SHORT = 16
"""How many prompts, shortest first, the cheap trials take: a batch of this size."""

SEEDED: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 11},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "seed": 2**62},
    {"temperature": 1.3, "min_p": 0.05, "seed": 5},
]
SEEDED_TOKENS = 12

pytestmark = pytest.mark.model


def test_the_cases_cover_every_pair() -> None:
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(case[i], case[j]) for case in PAIRWISE} == set(itertools.product(first, second))
    assert [set(values) for values in zip(*EVERY, strict=True)] == [set(values) for values in FACTORS.values()]


@dataclass(frozen=True)
class Trial:
    """An engine, the prompts that it continues together, and for how many tokens; the one it continues alone."""

    engine: Engine
    cases: list[Case]
    tokens: int
    alone: Case
    tokens_alone: int


def _parameters() -> Iterator[Any]:
    large = (pytest.mark.full, pytest.mark.timeout(600))
    for combination in PAIRWISE:
        marks = () if combination in EVERY else large
        yield pytest.param((combination, combination == PAIRWISE[0]), id="-".join(combination), marks=marks)
    for combination in ALL:
        if combination != PAIRWISE[0]:
            yield pytest.param((combination, True), id="-".join((*combination, "whole")), marks=large)


@pytest.fixture(scope="module", params=_parameters())
def trial(request: pytest.FixtureRequest, cases: list[Case], plain_engine: Engine) -> Iterator[Trial]:
    """All prompts and tokens with the first of the `check` engines, and in `full`; else fewer, to be quick."""
    combination, whole = request.param
    number = ALL.index(combination)
    if combination == PAIRWISE[0]:
        plain_engine.control("flush_cache")
        yield Trial(plain_engine, cases, 64, cases[number], 32)
        return
    sets = FLOAT32 | dict(zip(FACTORS, combination, strict=True)) | ({} if whole else ONE_THREAD)
    short = sorted(cases, key=lambda case: len(case.ids))[:SHORT]
    with Engine.from_config(QUICKSTART, sets) as engine:
        if whole:
            yield Trial(engine, cases, 64, cases[number % len(cases)], 64)
        else:
            yield Trial(engine, short, 20, short[number % SHORT], 12)


@pytest.fixture(scope="module")
def seeded_alone(plain_engine: Engine, cases: list[Case]) -> list[list[int]]:
    """Seeded draws, each made with nothing else running."""
    return [
        completion.token_ids
        for params in SEEDED
        for completion in plain_engine.generate([cases[0].ids], **params, max_tokens=SEEDED_TOKENS, ignore_eos=True)
    ]


def greedy(engine: Engine, cases: list[Case], tokens: int) -> list[list[int]]:
    completions = engine.generate([case.ids for case in cases], temperature=0, max_tokens=tokens, ignore_eos=True)
    return [completion.token_ids for completion in completions]


async def together(trial: Trial, prompt: list[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy and seeded continuations, computed in the same steps."""
    requests: list[tuple[list[list[int]], dict[str, Any]]] = [
        ([case.ids for case in trial.cases], {"temperature": 0, "max_tokens": trial.tokens}),
        *(([prompt], {**params, "max_tokens": SEEDED_TOKENS}) for params in SEEDED),
    ]
    answers = await asyncio.gather(
        *(trial.engine.agenerate(prompts, **params, ignore_eos=True) for prompts, params in requests)
    )
    first, *others = [[completion.token_ids for completion in completions] for completions in answers]
    return first, [ids for (ids,) in others]


def differences(cases: list[Case], found: list[list[int]]) -> dict[str, Any]:
    """By prompt: the first token at which a continuation leaves the reference, and the two tokens there."""
    expected = [case.tokens[: len(tokens)] for case, tokens in zip(cases, found, strict=True)]
    return {
        case.name: next((i, *pair) for i, pair in enumerate(zip(right, tokens, strict=True)) if len(set(pair)) > 1)
        for case, right, tokens in zip(cases, expected, found, strict=True)
        if tokens != right
    }


def test_in_a_batch(trial: Trial, cases: list[Case], seeded_alone: list[list[int]]) -> None:
    found, seeded = asyncio.run(together(trial, cases[0].ids))
    assert differences(trial.cases, found) == {}
    assert {len(tokens) for tokens in found} == {trial.tokens}
    assert seeded == seeded_alone


def test_alone(trial: Trial) -> None:
    """Another prompt with every engine; radix lends it what the batch has left."""
    found = greedy(trial.engine, [trial.alone], trial.tokens_alone)
    assert differences([trial.alone], found) == {}
    assert len(found[0]) == trial.tokens_alone
