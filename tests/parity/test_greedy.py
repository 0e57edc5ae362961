"""Greedy continuations through `Engine` are token for token those of transformers, however they are computed.

`check` runs engines that cover every pair of settings, `full` every combination.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
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
    "memory.kv_gib": ("0.5", "0.05"),  # room for all twenty, and for a few: then sequences wait and are put back
}
PAIRWISE = (
    ("radix", "2048", "16", "0", "0.5"),
    ("chunk", "32", "7", "0", "0.05"),
    ("radix", "2048", "7", "1", "0.05"),
    ("chunk", "32", "16", "1", "0.5"),
    ("radix", "32", "16", "2", "0.05"),
    ("chunk", "2048", "7", "2", "0.5"),
)
REST = [combination for combination in itertools.product(*FACTORS.values()) if combination not in PAIRWISE]

SAMPLED = [
    {"temperature": 0.8, "seed": 11, "n": 2},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "seed": 2**62},
    {"temperature": 1.3, "min_p": 0.05, "seed": 5},
]

pytestmark = pytest.mark.model


def test_the_cases_cover_every_pair() -> None:
    for (i, first), (j, second) in itertools.combinations(enumerate(FACTORS.values()), 2):
        assert {(case[i], case[j]) for case in PAIRWISE} == set(itertools.product(first, second))


@pytest.fixture(
    scope="module",
    params=[*PAIRWISE, *(pytest.param(one, marks=pytest.mark.full) for one in REST)],
    ids="-".join,
)
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """One engine's settings."""
    return FLOAT32 | dict(zip(FACTORS, request.param, strict=True))


@pytest.fixture(scope="module")
def engine(settings: Mapping[str, str]) -> Iterator[Engine]:
    """An engine with these settings."""
    with Engine.from_config(QUICKSTART, settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def sampled_alone(plain_engine: Engine, cases: list[Case]) -> list[list[int]]:
    """Seeded draws, each made with nothing else running."""
    return [
        completion.token_ids
        for params in SAMPLED
        for i in range(params.get("n", 1))
        for completion in plain_engine.generate(
            [cases[0].ids], **{**params, "n": 1, "seed": params["seed"] + i}, max_tokens=24, ignore_eos=True
        )
    ]


def greedy(engine: Engine, cases: list[Case]) -> list[list[int]]:
    completions = engine.generate([case.ids for case in cases], temperature=0, max_tokens=64, ignore_eos=True)
    return [completion.token_ids for completion in completions]


async def together(engine: Engine, cases: list[Case]) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy and seeded continuations, computed in the same steps."""
    results = await asyncio.gather(
        asyncio.to_thread(greedy, engine, cases),
        *(engine.agenerate([cases[0].ids], **params, max_tokens=24, ignore_eos=True) for params in SAMPLED),
    )
    return results[0], [completion.token_ids for completions in results[1:] for completion in completions]


def differences(cases: list[Case], found: list[list[int]]) -> dict[str, Any]:
    """By prompt: at which token a continuation leaves the reference."""
    return {
        case.name: next((i, a, b) for i, (a, b) in enumerate(zip(case.tokens, tokens, strict=True)) if a != b)
        for case, tokens in zip(cases, found, strict=True)
        if tokens != case.tokens
    }


def test_in_a_batch(engine: Engine, cases: list[Case], sampled_alone: list[list[int]]) -> None:
    found, sampled = asyncio.run(together(engine, cases))
    assert differences(cases, found) == {}
    assert sampled == sampled_alone


def test_alone(engine: Engine, settings: Mapping[str, str], cases: list[Case]) -> None:
    """Other prompts with every engine. Those that the batch has cached, too, so that radix lends all it can."""
    first = list(itertools.product(*FACTORS.values())).index(tuple(settings[name] for name in FACTORS))
    for case in cases[first % 20 : first % 20 + 1]:
        assert differences([case], greedy(engine, [case])) == {}
