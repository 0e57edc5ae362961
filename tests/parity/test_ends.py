"""What ends a generation of the real model, and what is counted, told from the reference's tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from srtkit import Engine
from tests.parity.reference import EOS, Case

pytestmark = pytest.mark.model

GREEDY = {"temperature": 0, "max_tokens": 64}


def test_the_end_of_a_turn_ends_it(plain_engine: Engine, cases: list[Case]) -> None:
    chats = [case for case in cases if case.is_chat]
    for case, found in zip(chats, plain_engine.generate([case.ids for case in chats], **GREEDY), strict=True):
        assert found.token_ids == case.answer, case.name
        ended = case.answer[-1] == EOS
        assert found.finish_reason == ("stop" if ended else "length"), case.name
        if ended:
            assert found.text == case.text.partition("<|im_end|>")[0], case.name
        assert found.prompt_tokens == len(case.ids)


def test_max_tokens(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    count = case("count")
    for n in (1, 7):
        (found,) = plain_engine.generate([count.ids], temperature=0, max_tokens=n)
        assert (found.token_ids, found.finish_reason) == (count.tokens[:n], "length")


def test_no_end_before_min_tokens(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    count = case("count")
    n = len(count.answer) - 1  # tokens before the EOS
    (allowed,) = plain_engine.generate([count.ids], **GREEDY, min_tokens=n)
    assert (allowed.token_ids, allowed.finish_reason) == (count.answer, "stop")
    (longer,) = plain_engine.generate([count.ids], **GREEDY, min_tokens=n + 6)
    assert longer.token_ids[:n] == count.answer[:n]
    assert EOS not in longer.token_ids[: n + 6]
    assert len(longer.token_ids) >= n + 6


def test_stop_token_ids(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    planets = case("planets")
    for n in (0, 20):
        stop = planets.tokens[n]
        until = planets.tokens.index(stop) + 1
        (found,) = plain_engine.generate([planets.ids], **GREEDY, stop_token_ids=[stop, 31_000], ignore_eos=True)
        assert (found.token_ids, found.finish_reason) == (planets.tokens[:until], "stop")
        assert planets.text.startswith(found.text)
    assert plain_engine.generate([planets.ids], **GREEDY, stop_token_ids=[planets.tokens[0]])[0].text == ""


@pytest.mark.parametrize("stop", [" 6", "5, 6", ", 6, 7,", "10"])
def test_stop_strings(plain_engine: Engine, case: Callable[[str], Case], stop: str) -> None:
    count = case("count")
    assert stop in count.text
    params = {**GREEDY, "stop": [stop, "never in there"]}
    found, shown = (
        plain_engine.generate([count.ids], **params, include_stop_str_in_output=keep)[0] for keep in (False, True)
    )
    assert found.text == count.text.partition(stop)[0]
    assert shown.text == found.text + stop
    assert found.finish_reason == shown.finish_reason == "stop"
    assert found.token_ids == count.tokens[: len(found.token_ids)]
    assert len(found.token_ids) < len(count.answer)


def test_streamed_pieces_are_the_whole(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    emoji = case("emoji")  # its characters are made of several tokens
    deltas = list(plain_engine.stream(emoji.ids, **GREEDY, ignore_eos=True))
    assert [id_ for delta in deltas for id_ in delta.token_ids] == emoji.tokens
    assert "".join(delta.text for delta in deltas) == emoji.text
    assert all("\ufffd" not in delta.text for delta in deltas[:-1])
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


def test_cached_tokens_are_whole_pages_before_the_last_token(plain_engine: Engine, case: Callable[[str], Case]) -> None:
    mill = case("mill")
    page = plain_engine.control("info")["page_size"]
    plain_engine.flush_cache()
    cached = [plain_engine.generate([mill.ids], temperature=0, max_tokens=1)[0].cached_tokens for _ in range(2)]
    assert cached == [0, (len(mill.ids) - 1) // page * page]
