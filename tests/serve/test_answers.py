"""What the answers say, word by word, over an engine whose words are known."""

from __future__ import annotations

import httpx
import openai
import pytest

from srtkit.spec.messages import ints
from srtkit.text.tokenizer import Tokenizer
from tests.serve.engine_double import STORY
from tests.serve.running import MAX_CONTEXT, Running, serving
from tests.serve.test_http import error, events

EOS, START, END = 257, 258, 259


@pytest.fixture
def client(double: Running) -> openai.OpenAI:
    with openai.OpenAI(base_url=f"{double.target.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
def test_the_whole_story(client: openai.OpenAI, stream: bool) -> None:
    request = {"model": "toy", "prompt": "Tell", "max_tokens": 300, "temperature": 0}
    if stream:
        parts = [chunk.choices[0] for chunk in client.completions.create(**request, stream=True)]
        text, reason = "".join(part.text for part in parts), parts[-1].finish_reason
    else:
        choice = client.completions.create(**request).choices[0]
        text, reason = choice.text, choice.finish_reason
    assert text == STORY
    assert reason == "stop"


def test_no_chunk_holds_half_a_character(client: openai.OpenAI) -> None:
    chunks = list(client.completions.create(model="toy", prompt="Tell", max_tokens=300, temperature=0, stream=True))
    assert not any("\ufffd" in chunk.choices[0].text for chunk in chunks)


def test_cut_in_a_character(client: openai.OpenAI) -> None:
    before = STORY.index("é")
    answer = client.completions.create(model="toy", prompt="Tell", max_tokens=before + 1, temperature=0)
    assert answer.choices[0].text == STORY[:before] + "\ufffd"
    assert answer.choices[0].finish_reason == "length"


def test_stop_string_counts_what_was_generated(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt="Tell", max_tokens=300, temperature=0, stop="STOP")
    told = STORY[: STORY.index("STOP")]
    assert answer.choices[0].text == told
    assert answer.usage.completion_tokens == len((told + "STOP").encode())


def test_special_tokens_shown_when_asked(client: openai.OpenAI) -> None:
    request = {"model": "toy", "prompt": "Tell", "max_tokens": len(STORY.encode()) + 3, "temperature": 0}
    hidden = client.completions.create(**request, extra_body={"ignore_eos": True})
    shown = client.completions.create(**request, extra_body={"ignore_eos": True, "skip_special_tokens": False})
    assert hidden.choices[0].text == STORY + STORY[:2]
    assert shown.choices[0].text == STORY + "<|eos|>" + STORY[:2]


def test_chat_logprobs_have_bytes(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "Tell"}], max_tokens=100, temperature=0,
        logprobs=True, top_logprobs=2,
    )  # fmt: skip
    content = answer.choices[0].logprobs.content
    assert bytes(byte for token in content for byte in token.bytes).decode() == STORY + "<|eos|>"
    first = content[0]
    assert (first.token, first.logprob, first.bytes) == ("O", -0.25, [79])
    assert [(one.token, one.logprob) for one in first.top_logprobs] == [("O", -0.25), ("P", -1.25)]


def test_completion_logprobs_have_offsets(client: openai.OpenAI) -> None:
    before = STORY.index("é")
    request = {"model": "toy", "prompt": "Tell", "max_tokens": before + 2, "temperature": 0, "logprobs": 1}
    logprobs = client.completions.create(**request).choices[0].logprobs
    assert logprobs.tokens == [*STORY[:before], "bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs.text_offset[:before] == list(range(before))
    assert logprobs.top_logprobs[0] == {"O": -0.25}
    streamed = [chunk.choices[0].logprobs for chunk in client.completions.create(**request, stream=True)]
    assert [offset for part in streamed for offset in part.text_offset] == logprobs.text_offset
    assert [token for part in streamed for token in part.tokens] == logprobs.tokens


def test_bos_is_there_once(client: openai.OpenAI, double: Running) -> None:
    for prompt in ("Hi", "<|bos|>Hi", [256, 72, 105]):
        client.completions.create(model="toy", prompt=prompt, max_tokens=1)
        assert ints(double.engine.submitted[-1].ids).tolist() == [256, 72, 105]
    client.chat.completions.create(model="toy", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)
    text = "<|bos|><|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert ints(double.engine.submitted[-1].ids).tolist() == double.tokenizer.encode(text, add_special=False)


def test_template_variables(http: httpx.Client, double: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "add_generation_prompt": False}
    answer = http.post("/v1/chat/completions", json=body | {"chat_template_kwargs": {"shout": True}})
    assert answer.status_code == 200
    assert double.tokenizer.decode(ints(double.engine.submitted[-1].ids)).endswith("Hi\n!")
    wrong = http.post("/v1/chat/completions", json=body | {"chat_template_kwargs": {"messages": []}})
    assert error(wrong, 400)["param"] == "chat_template_kwargs.messages"


def test_sampling_reaches_the_engine(http: httpx.Client, double: Running) -> None:
    body = {
        "prompt": "Hi", "n": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 2**63 - 1,
        "max_tokens": 5, "min_tokens": 2, "stop_token_ids": [65, 257], "priority": -3, "cache_salt": "tenant",
        "logprobs": 4,
    }  # fmt: skip
    assert http.post("/v1/completions", json=body).status_code == 200
    first, second = double.engine.submitted[-2:]
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.7, 0.9, 40, 0.05)
    assert (sampling.max_tokens, sampling.min_tokens, sampling.logprobs) == (5, 2, 4)
    assert sampling.stop_ids == (257, 259, 65)
    assert (first.priority, first.namespace) == (-3, b"tenant")
    assert (first.sampling.seed, second.sampling.seed) == (2**63 - 1, 0)


def test_salt_and_extra_key_are_told_apart(http: httpx.Client, double: Running) -> None:
    """Neither can be written as the other, or as both."""
    spaces = []
    for salt, key in (("", ""), ("a", ""), ("", "a"), ("a", "b"), ("ab", ""), ("", "ab")):
        body = {"prompt": "Hi", "cache_salt": salt, "extra_key": key}
        assert http.post("/v1/completions", json=body).status_code == 200
        spaces.append(double.engine.submitted[-1].namespace)
    assert spaces[:2] == [b"", b"a"] and len(set(spaces)) == 6


def test_a_prompt_that_cannot_fit_is_refused_unread(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tokenizer, "encode", None)
    answer = http.post("/v1/completions", json={"prompt": "hello wor " * 1_000_000})
    assert error(answer, 400)["code"] == "context_length_exceeded"


def test_seeds_differ_when_none_is_given(http: httpx.Client, double: Running) -> None:
    http.post("/v1/completions", json={"prompt": ["a", "a"], "n": 2, "max_tokens": 1})
    assert len({request.sampling.seed for request in double.engine.submitted[-4:]}) == 4


def test_limits_of_length(http: httpx.Client, double: Running) -> None:
    ids = [5] * 10
    http.post("/v1/completions", json={"prompt": ids, "max_tokens": 10_000})
    assert double.engine.submitted[-1].sampling.max_tokens == MAX_CONTEXT - 10
    http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    last = double.engine.submitted[-1]
    assert last.sampling.max_tokens == MAX_CONTEXT - len(ints(last.ids))


def test_defaults_of_the_model(double: Running) -> None:
    generation = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "eos_token_id": [257, 259]}
    with serving(generation=generation) as running:
        url = f"{running.target.base_url}/v1/completions"
        httpx.post(url, json={"prompt": "Hi", "max_tokens": 1})
        httpx.post(url, json={"prompt": "Hi", "max_tokens": 1, "temperature": 0, "top_k": -1})
        plain, own = [request.sampling for request in running.engine.submitted]
    assert (plain.temperature, plain.top_p, plain.top_k, plain.stop_ids) == (0.6, 0.8, 20, (257, 259))
    assert (own.temperature, own.top_p, own.top_k) == (0, 0.8, 0)


def test_greedy_by_default_when_the_model_says_so() -> None:
    with serving(generation={"do_sample": False}) as running:
        answer = httpx.post(f"{running.target.base_url}/v1/completions", json={"prompt": "Hi", "max_tokens": 4})
    assert answer.json()["choices"][0]["text"] == STORY[:4]


def test_usage_counts_a_prompt_once(http: httpx.Client) -> None:
    body = {"prompt": [[1, 2, 3], [4, 5]], "n": 3, "max_tokens": 2, "stream": True, "cache_salt": "usage"}
    for cached in (0, 3):
        *_, last = events(http.post("/v1/completions", json=body | {"stream_options": {"include_usage": True}}))
        assert last["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": 12,
            "total_tokens": 17,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def test_long_texts_are_tokenized_beside_the_loop(http: httpx.Client) -> None:
    text = "x" * 30_000
    assert http.post("/tokenize", json={"prompt": text}).json()["count"] == 30_001
    assert "30001" in error(http.post("/v1/completions", json={"prompt": text}), 400)["message"]
    chat = {"messages": [{"role": "user", "content": text}]}
    assert error(http.post("/v1/chat/completions", json=chat), 400)["param"] == "messages"
