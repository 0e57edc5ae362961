"""The reference through the whole server: two processes, sockets, HTTP, text.

Greedy tokens also under the settings that `test_greedy` has for `Engine`: `check` serves each value of each of them,
`full` every combination.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.live import LiveServer, live_server
from tests.parity.conftest import FLOAT32, ONE_THREAD
from tests.parity.reference import Case
from tests.parity.test_greedy import ALL, FACTORS, SHORT, differences

pytestmark = pytest.mark.model

GREEDY = {"temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
PLAIN = ("radix", "2048", "16", "0", "0.5")
"""What `server` has, of the factors."""
SERVED = (PLAIN, ("chunk", "32", "7", "1", "0.03"), ("radix", "32", "16", "2", "0.03"))
TOKENS = 16


@pytest.fixture(scope="module")
def server(quickstart: Path) -> Iterator[LiveServer]:
    """It serves in float32."""
    with live_server(quickstart, FLOAT32 | ONE_THREAD) as server:
        yield server


def agree(text: str, case: Case) -> bool:
    """Whether a text is how the reference begins. The limit may have cut a character of several tokens."""
    whole = text.rstrip("\ufffd")
    return whole != "" and case.text.startswith(whole)


def post_all(server: LiveServer, requests: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The answers to requests that are sent at once."""

    async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
        response = await client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    async def post_them() -> list[Any]:
        async with httpx.AsyncClient(base_url=server.base_url, timeout=100) as client:
            return await asyncio.gather(*(post(client, path, body) for path, body in requests))

    return asyncio.run(post_them())


@pytest.mark.parametrize("tokens", [20, pytest.param(64, marks=pytest.mark.full)])
def test_token_ids(server: LiveServer, cases: list[Case], tokens: int) -> None:
    ids = [case.ids for case in cases]
    greedy = {**GREEDY, "max_tokens": tokens}
    (answer,) = post_all(server, [("/v1/completions", {"prompt": ids, **greedy})])
    for case, choice in zip(cases, answer["choices"], strict=True):
        assert agree(choice["text"], case), case.name
        assert choice["finish_reason"] == "length", case.name
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert answer["usage"]["completion_tokens"] == len(cases) * tokens


def test_messages_and_texts(server: LiveServer, cases: list[Case]) -> None:
    chats = [case for case in cases if case.is_chat]
    texts = [case for case in cases if not case.is_chat]
    few = {**GREEDY, "max_tokens": 16}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": case.prompt, **few}) for case in chats
    ]
    requests.append(("/generate", {"text": [case.prompt for case in texts], "sampling_params": few}))
    *answers, results = post_all(server, requests)
    for case, answer in zip(chats, answers, strict=True):
        assert agree(answer["choices"][0]["message"]["content"], case), case.name
        assert answer["usage"]["prompt_tokens"] == len(case.ids), case.name
    for case, result in zip(texts, results, strict=True):
        assert result["output_ids"] == case.tokens[:16], case.name
        assert result["meta_info"]["prompt_tokens"] == len(case.ids), case.name


def test_a_chat_ends_with_its_turn(server: LiveServer, cases: list[Case]) -> None:
    case = next(case for case in cases if case.is_chat and "<|im_end|>" in case.text)
    request = {"messages": case.prompt, "temperature": 0}
    ((whole,), (short,)) = (
        answer["choices"]
        for answer in post_all(
            server, [("/v1/chat/completions", request), ("/v1/chat/completions", {**request, "max_tokens": 2})]
        )
    )
    assert whole["message"]["content"] == case.text.partition("<|im_end|>")[0]
    assert whole["finish_reason"] == "stop"
    assert short["finish_reason"] == "length"
    assert case.text.startswith(short["message"]["content"])


# --- as test_greedy has it


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
def trial(request: pytest.FixtureRequest, cases: list[Case], quickstart: Path, server: LiveServer) -> Iterator[Trial]:
    """One of the combinations, served."""
    short = sorted(cases, key=lambda case: len(case.ids))[:SHORT]
    alone = short[ALL.index(request.param) % SHORT]
    if request.param == PLAIN:
        yield Trial(server, short, alone)
        return
    sets = FLOAT32 | ONE_THREAD | dict(zip(FACTORS, request.param, strict=True))
    with live_server(quickstart, sets) as other:
        yield Trial(other, short, alone)


def generated(server: LiveServer, cases: list[Case]) -> list[list[int]]:
    """What the server makes of these prompts in one request."""
    params = {**GREEDY, "max_tokens": TOKENS}
    body = {"input_ids": [case.ids for case in cases], "sampling_params": params}
    (answer,) = post_all(server, [("/generate", body)])
    return [one["output_ids"] for one in answer]


def test_greedy_in_a_batch(trial: Trial) -> None:
    found = generated(trial.server, trial.cases)
    assert differences(trial.cases, found) == {}
    assert [len(tokens) for tokens in found] == [TOKENS] * SHORT


def test_greedy_alone(trial: Trial) -> None:
    """After the batch: radix lends it what the same prompt has left."""
    (found,) = generated(trial.server, [trial.alone])
    assert found == trial.alone.tokens[:TOKENS]
