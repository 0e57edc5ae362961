"""What ends a generation of the real model, and what is counted, told from the reference's tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from srtkit import Engine
from srtkit.engine.inprocess import Completion
from tests.parity.reference import EOS, Case

pytestmark = pytest.mark.model

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}


def each(engine: Engine, prompt: list[int], *several: Mapping[str, Any]) -> list[Completion]:
    """One greedy completion of the prompt for each set of parameters, computed together."""

    async def together() -> list[list[Completion]]:
        return await asyncio.gather(*(engine.agenerate([prompt], **{**GREEDY, **params}) for params in several))

    return [completion for (completion,) in asyncio.run(together())]


def test_the_end_of_a_turn_ends_it(plain_engine: Engine, cases: list[Case]) -> None:
    chats = [case for case in cases if case.is_chat]
    for case, found in zip(chats, plain_engine.generate([case.ids for case in chats], **GREEDY), strict=True):
        expected = case.answer[:48]
        ended = expected[-1] == EOS
        assert found.token_ids == expected, case.name
        assert found.finish_reason == ("stop" if ended else "length"), case.name
        if ended:
            assert found.text == case.text.partition("<|im_end|>")[0], case.name
        assert found.prompt_tokens == len(case.ids)


def test_max_tokens(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    count = case("count")
    for found, n in zip(each(plain_engine, count.ids, {"max_tokens": 1}, {"max_tokens": 7}), (1, 7), strict=True):
        assert (found.token_ids, found.finish_reason) == (count.tokens[:n], "length")


def test_no_end_before_min_tokens(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    count = case("count")
    n = len(count.answer) - 1  # tokens before the EOS
    allowed, longer = each(plain_engine, count.ids, {"min_tokens": n}, {"min_tokens": n + 6})
    assert (allowed.token_ids, allowed.finish_reason) == (count.answer, "stop")
    assert longer.token_ids[:n] == count.answer[:n]
    assert EOS not in longer.token_ids[: n + 6]
    assert len(longer.token_ids) >= n + 6


def test_stop_token_ids(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    planets = case("planets")
    stops = [planets.tokens[0], planets.tokens[20]]
    found = each(plain_engine, planets.ids, *({"stop_token_ids": [31_000, stop], "ignore_eos": True} for stop in stops))
    for stop, one in zip(stops, found, strict=True):
        until = planets.tokens.index(stop) + 1
        assert (one.token_ids, one.finish_reason) == (planets.tokens[:until], "stop")
        assert planets.text.startswith(one.text)
    assert [one.text == "" for one in found] == [True, False]  # a stop token has no text


def test_stop_strings(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    count = case("count")
    stops = [" 6", "5, 6", ", 6, 7,", "10"]  # within a token, of several, ending within one
    assert all(stop in count.text for stop in stops)
    several = [{"stop": [stop, "never in there"]} for stop in stops]
    hidden = each(plain_engine, count.ids, *several)
    shown = each(plain_engine, count.ids, *({**params, "include_stop_str_in_output": True} for params in several))
    for stop, without, with_it in zip(stops, hidden, shown, strict=True):
        assert without.text == count.text.partition(stop)[0]
        assert with_it.text == without.text + stop
        assert without.finish_reason == with_it.finish_reason == "stop"
        assert without.token_ids == count.tokens[: len(without.token_ids)]
        assert len(without.token_ids) < len(count.answer)


def test_streamed_pieces_are_the_whole(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    emoji = case("emoji")  # its characters are made of several tokens
    deltas = list(plain_engine.stream(emoji.ids, **GREEDY, ignore_eos=True))
    assert [id_ for delta in deltas for id_ in delta.token_ids] == emoji.tokens[:48]
    assert emoji.text.startswith("".join(delta.text for delta in deltas).rstrip("\ufffd"))
    assert all("\ufffd" not in delta.text for delta in deltas[:-1])
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


def test_cached_tokens_are_whole_pages_before_the_last_token(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    mill = case("mill")
    page = plain_engine.control("info")["page_size"]
    plain_engine.control("flush_cache")
    cached = [plain_engine.generate([mill.ids], temperature=0, max_tokens=1)[0].cached_tokens for _ in range(2)]
    assert cached == [0, (len(mill.ids) - 1) // page * page]
