"""The greedy reference through `srt serve`, under the settings that `test_greedy` has for `Engine`: every token equal.

`check` serves each value of each setting, `full` every combination.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.live import LiveServer, live_server
from tests.parity.conftest import FLOAT32, ONE_THREAD, QUICKSTART
from tests.parity.reference import Case
from tests.parity.test_greedy import ALL, FACTORS, SHORT, differences

SERVED = (
    ("radix", "2048", "16", "0", "0.5"),
    ("chunk", "32", "7", "1", "0.03"),
    ("radix", "32", "16", "2", "0.03"),
)
TOKENS = 16

pytestmark = pytest.mark.model


def test_each_value_of_each_setting_is_served() -> None:
    for position, values in enumerate(FACTORS.values()):
        assert {served[position] for served in SERVED} == set(values)


@dataclass(frozen=True)
class Trial:
    """A server, a batch of prompts, and the one that it continues alone."""

    server: LiveServer
    cases: list[Case]
    alone: Case


def _parameters() -> Iterator[Any]:
    for combination in ALL:
        marks = () if combination in SERVED else (pytest.mark.full,)
        yield pytest.param(combination, id="-".join(combination), marks=marks)


@pytest.fixture(scope="module", params=_parameters())
def trial(request: pytest.FixtureRequest, cases: list[Case]) -> Iterator[Trial]:
    """One of the settings, served."""
    short = sorted(cases, key=lambda case: len(case.ids))[:SHORT]
    sets = FLOAT32 | ONE_THREAD | dict(zip(FACTORS, request.param, strict=True))
    with live_server(QUICKSTART, sets) as server:
        yield Trial(server, short, short[ALL.index(request.param) % SHORT])


def generated(server: LiveServer, cases: list[Case]) -> list[list[int]]:
    """What the server makes of these prompts in one request."""
    params = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    body = {"input_ids": [case.ids for case in cases], "sampling_params": params}
    answer = httpx.post(f"{server.base_url}/generate", json=body, timeout=100)
    assert answer.status_code == 200, answer.text
    return [one["output_ids"] for one in answer.json()]


def test_in_a_batch(trial: Trial) -> None:
    found = generated(trial.server, trial.cases)
    assert differences(trial.cases, found) == {}
    assert [len(tokens) for tokens in found] == [TOKENS] * SHORT


def test_alone(trial: Trial) -> None:
    """After the batch: radix lends it what the same prompt has left."""
    (found,) = generated(trial.server, [trial.alone])
    assert found == trial.alone.tokens[:TOKENS]
