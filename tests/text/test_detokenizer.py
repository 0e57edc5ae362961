"""Streaming decode: the parts add up to the whole, and what was given out never changes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from srtkit.spec.errors import Unsupported
from srtkit.spec.tokenizer import TokenizerData
from srtkit.text.stream import IncrementalDetokenizer
from srtkit.text.tokenizer import Tokenizer

QUICK = settings(max_examples=400, deadline=None, derandomize=True)
TEXTS = st.one_of(st.text(max_size=30), st.text(alphabet="a é語🙂👍🏽\u200d\n", max_size=30))
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=10)


@pytest.fixture(scope="module")
def bytes_only() -> Tokenizer:
    """Byte-level BPE without a merge: every token is one byte, so every character is cut up."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({char: id_ for id_, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(TokenizerData(backend.to_str))


@pytest.fixture(scope="module", params=["bytes_only", "llama_like"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found


def stream(detokenizer: IncrementalDetokenizer, ids: list[int], chunks: list[int]) -> list[str]:
    parts, at, turn = [], 0, 0
    while at < len(ids):
        size = chunks[turn % len(chunks)]
        parts.append(detokenizer.push(ids[at : at + size]))
        at, turn = at + size, turn + 1
    return [*parts, detokenizer.flush()]


def begun(tokenizer: Tokenizer, text: str) -> str:
    """The text without the space that only the start of a whole one loses."""
    return text.removeprefix(" ") if tokenizer.drops_leading_space else text


@QUICK
@given(data=st.data(), chunks=CHUNKS, skip_special=st.booleans())
def test_parts_of_random_ids_add_up(
    tokenizer: Tokenizer, data: st.DataObject, chunks: list[int], skip_special: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(tokenizer.table(False)) + 3), max_size=40))
    text = "".join(stream(IncrementalDetokenizer(tokenizer, skip_special), ids, chunks))
    assert begun(tokenizer, text) == tokenizer.decode(ids, skip_special)


@QUICK
@given(text=TEXTS, chunks=CHUNKS)
def test_parts_of_a_text_are_whole_characters_of_it(tokenizer: Tokenizer, text: str, chunks: list[int]) -> None:
    ids = tokenizer.encode(text)
    parts = stream(IncrementalDetokenizer(tokenizer), ids, chunks)
    assert begun(tokenizer, "".join(parts)) == text
    assert parts[-1] == ""


@QUICK
@given(prompt=TEXTS, text=TEXTS)
def test_a_continuation_adds_to_its_prompt(tokenizer: Tokenizer, prompt: str, text: str) -> None:
    before, after = tokenizer.encode(prompt or "x"), tokenizer.encode(text, add_special=False)
    grown = "".join(stream(IncrementalDetokenizer(tokenizer), after, [1]))
    assert tokenizer.decode(before) + grown == tokenizer.decode(before + after)


def test_an_unfinished_character_waits_and_an_impossible_one_does_not(bytes_only: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(bytes_only)
    smile = bytes_only.encode("🙂")
    assert [detokenizer.push([id_]) for id_ in smile] == ["", "", "", "🙂"]
    assert detokenizer.push(smile[:2]) == ""
    assert detokenizer.push(bytes_only.encode("a")) == "\ufffda"
    assert detokenizer.push(smile[:3]) == ""
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_skipped_or_shown(bytes_only: Tokenizer) -> None:
    ids = bytes_only.encode("a<|end|>b")
    assert len(ids) == 3
    assert IncrementalDetokenizer(bytes_only).push(ids) == "ab"
    assert IncrementalDetokenizer(bytes_only, skip_special=False).push(ids) == "a<|end|>b"


def test_a_prompt_is_followed_with_its_space_and_a_text_begins_without(llama_like: Tokenizer) -> None:
    ids = llama_like.encode("the page", add_special=False)
    assert "".join(stream(IncrementalDetokenizer(llama_like), ids, [1])) == " the page"
    assert llama_like.decode(ids) == "the page"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), None])
def test_decoders_that_look_at_neighbours_are_refused(decoder: decoders.Decoder | None) -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(Unsupported, match="token by token"):
        Tokenizer(TokenizerData(backend.to_str))
