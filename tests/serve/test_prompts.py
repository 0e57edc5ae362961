"""Sampling parameters and token lists without a server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from srtkit.serve.prompts import build_prompts, off_loop, sampling_defaults, token_lists
from srtkit.serve.requests import GenerationFields
from srtkit.spec.errors import RequestError
from srtkit.spec.messages import Sampling
from tests.serve.running import MAX_CONTEXT, byte_tokenizer, served_model

MODEL = served_model(byte_tokenizer())
BARE = replace(MODEL, tokenizer=None)


def sampling(fields: GenerationFields, generation: Mapping[str, Any] = {}) -> Sampling:
    model = replace(MODEL, defaults=sampling_defaults(generation, (257, 259)))
    (prompt,) = build_prompts([1, 2], fields, model, 16, None)
    return prompt.sampling


@pytest.mark.parametrize("generation", [{"temperature": 0.0}, {"do_sample": False, "temperature": 0.7}])
def test_greedy_defaults(generation: dict) -> None:
    assert sampling(GenerationFields(), generation=generation).temperature == 0
    assert sampling(GenerationFields(temperature=0.5), generation=generation).temperature == 0.5


def test_nulls_and_other_keys_of_the_model_are_no_defaults() -> None:
    found = sampling(GenerationFields(), generation={"top_k": None, "max_length": 20, "do_sample": True})
    assert (found.temperature, found.top_k, found.top_p, found.min_p, found.max_tokens) == (1, 0, 1, 0, 16)


def test_a_penalty_of_the_model_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sampling_defaults({"repetition_penalty": 1.05}, ())
    assert "repetition_penalty" in caplog.text


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert sampling(GenerationFields(temperature=1e-30)).temperature == 0
    assert sampling(GenerationFields(temperature=1e-3)).temperature == 1e-3


def test_ignore_eos_keeps_what_the_request_names() -> None:
    assert sampling(GenerationFields(ignore_eos=True, stop_token_ids=[257, 7])).stop_ids == (257, 7)
    assert sampling(GenerationFields(stop_token_ids=[257, 7])).stop_ids == (257, 259, 7)


def test_negative_seeds_are_as_good_as_any() -> None:
    prompts = build_prompts([1], GenerationFields(seed=-1, n=2), MODEL, 16, None)
    assert [prompt.sampling.seed for prompt in prompts] == [2**63 - 1, 0]


def test_the_prompt_must_leave_room_for_a_token() -> None:
    longest = [1] * (MAX_CONTEXT - 1)
    assert asyncio.run(token_lists(MODEL, longest, "prompt")) == [longest]
    with pytest.raises(RequestError, match=f"{MAX_CONTEXT} tokens or more; the context holds {MAX_CONTEXT}"):
        asyncio.run(token_lists(MODEL, [*longest, 1], "prompt"))


def test_without_a_tokenizer_only_ids_are_taken() -> None:
    assert asyncio.run(token_lists(BARE, [[1], [2, 3]], "prompt")) == [[1], [2, 3]]
    with pytest.raises(RequestError, match="without a tokenizer"):
        asyncio.run(token_lists(BARE, "text", "prompt"))
    with pytest.raises(RequestError, match="stop"):
        build_prompts([1], GenerationFields(stop="x"), BARE, 16, None)
    with pytest.raises(RequestError, match="logprobs"):
        build_prompts([1], GenerationFields(), BARE, 16, 0)


def test_long_work_leaves_the_loop_free() -> None:
    async def both() -> list[str]:
        order: list[str] = []
        asyncio.get_running_loop().call_soon(order.append, "loop")
        await off_loop(20_000, lambda: order.append("thread"))
        await off_loop(19_999, lambda: order.append("here"))
        return order

    order = asyncio.run(both())
    assert sorted(order) == ["here", "loop", "thread"]
    assert order[-1] == "here"
