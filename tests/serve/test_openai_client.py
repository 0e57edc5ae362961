"""The official client against a live server: forms and figures, whatever the model says.

No test here knows the text a model gives, so each runs against any server.
"""

from __future__ import annotations

import openai
import pytest

from tests.serve.running import Target

QUESTION = [{"role": "user", "content": "What is a page?"}]
PROMPT = "The KV cache is"


def test_models(client: openai.OpenAI, target: Target) -> None:
    (model,) = client.models.list().data
    assert model.id == target.model
    assert model.owned_by
    assert model.created > 0
    assert model.max_model_len > 0
    assert client.models.retrieve("default").id == target.model


def test_chat(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(model=target.model, messages=QUESTION, max_tokens=8, temperature=0)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == target.model
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert choice.logprobs is None
    usage = answer.usage
    assert usage.prompt_tokens > 0
    assert 0 < usage.completion_tokens <= 8
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0


def test_chat_streamed_is_the_same_text(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "messages": QUESTION, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert last.choices == []
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(part.usage is None for part in parts)
    assert {part.id for part in chunks} == {last.id}
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_stream_without_usage_has_none(client: openai.OpenAI, target: Target) -> None:
    chunks = list(client.chat.completions.create(model=target.model, messages=QUESTION, max_tokens=4, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_the_second_time_the_prompt_is_cached(client: openai.OpenAI, target: Target) -> None:
    messages = [{"role": "user", "content": "Say something about pages, tokens and leases. " * 6}]
    first, second = (
        client.chat.completions.create(model=target.model, messages=messages, max_tokens=2).usage for _ in range(2)
    )
    assert 0 < second.prompt_tokens_details.cached_tokens < second.prompt_tokens
    assert first.prompt_tokens == second.prompt_tokens


def test_cache_salt_keeps_prefixes_apart(client: openai.OpenAI, target: Target) -> None:
    def cached(salt: str) -> int:
        answer = client.completions.create(
            model=target.model,
            prompt="A salted prefix of some length. " * 8,
            max_tokens=1,
            extra_body={"cache_salt": salt},
        )
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached("one") == 0
    assert cached("one") > 0
    assert cached("two") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_several_choices(client: openai.OpenAI, target: Target, stream: bool) -> None:
    request = {"model": target.model, "messages": QUESTION, "n": 2, "max_tokens": 6, "temperature": 0, "seed": 5}
    whole = client.chat.completions.create(**request)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].message.content == whole.choices[1].message.content  # greedy
    assert whole.usage.completion_tokens == 12
    assert whole.usage.prompt_tokens == client.chat.completions.create(**{**request, "n": 1}).usage.prompt_tokens
    if stream:
        texts, ends = ["", ""], ["", ""]
        for chunk in client.chat.completions.create(**request, stream=True):
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content
            ends[choice.index] = choice.finish_reason
        assert texts == [choice.message.content for choice in whole.choices]
        assert ends == [choice.finish_reason for choice in whole.choices]


def test_same_seed_same_text(client: openai.OpenAI, target: Target) -> None:
    def text(seed: int) -> str:
        answer = client.completions.create(model=target.model, prompt=PROMPT, max_tokens=24, temperature=1.5, seed=seed)
        return answer.choices[0].text

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(6)}) > 1


def test_choice_i_has_seed_plus_i(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "prompt": PROMPT, "max_tokens": 16, "temperature": 1.5}
    both = client.completions.create(**request, n=2, seed=40)
    alone = [client.completions.create(**request, seed=40 + i).choices[0].text for i in range(2)]
    assert [choice.text for choice in both.choices] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_text(client: openai.OpenAI, target: Target, stream: bool) -> None:
    request = {"model": target.model, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**request).choices[0].text
    stop = text[10:14]
    expected = text[: text.index(stop)]
    stopped = client.completions.create(**request, stop=[stop, "never in there"])
    assert stopped.choices[0].text == expected
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens < 40
    kept = client.completions.create(**request, stop=stop, extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].text == expected + stop
    if stream:
        parts = list(
            client.completions.create(**request, stop=stop, stream=True, stream_options={"include_usage": True})
        )
        assert "".join(part.choices[0].text for part in parts[:-1]) == expected
        assert parts[-2].choices[0].finish_reason == "stop"
        assert parts[-1].usage.completion_tokens == stopped.usage.completion_tokens


def test_stop_token_id(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    free = client.completions.create(**request)
    generated = client.post(
        "/../generate",
        cast_to=object,
        body={"text": PROMPT, "sampling_params": {"max_tokens": 12, "temperature": 0}},
    )
    ids = generated["output_ids"]
    stop_id = ids[5]
    end = ids.index(stop_id) + 1
    stopped = client.completions.create(**request, extra_body={"stop_token_ids": [stop_id]})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage.completion_tokens == end
    assert free.choices[0].text.startswith(stopped.choices[0].text)


def test_chat_logprobs(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(
        model=target.model, messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens
    for token in content:
        assert len(token.top_logprobs) == 3
        values = [other.logprob for other in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == pytest.approx(values[0])  # greedy takes the likeliest
        assert token.token == token.top_logprobs[0].token
        assert bytes(token.bytes).decode(errors="replace") == token.token


def test_chat_logprobs_streamed(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "messages": QUESTION, "max_tokens": 6, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(**request).choices[0].logprobs.content
    parts = [
        token
        for chunk in client.chat.completions.create(**request, stream=True)
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.token for token in parts] == [token.token for token in whole]
    assert [token.logprob for token in parts] == pytest.approx([token.logprob for token in whole], rel=1e-3)
    assert all(token.top_logprobs == [] for token in whole)


def test_completion_logprobs(client: openai.OpenAI, target: Target) -> None:
    answer = client.completions.create(
        model=target.model, prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2, extra_body={"ignore_eos": True}
    )
    choice = answer.choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
    assert logprobs.text_offset[0] == 0
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == pytest.approx(value)
        assert 2 <= len(top) <= 3
        assert value <= 0


def test_ignore_eos_and_min_tokens(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "prompt": PROMPT, "max_tokens": 100, "temperature": 0}
    answer = client.completions.create(**request, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 100
    assert answer.choices[0].finish_reason == "length"
    answer = client.completions.create(**request, extra_body={"min_tokens": 95})
    assert answer.usage.completion_tokens >= 95


def test_token_id_prompts(client: openai.OpenAI, target: Target) -> None:
    ids = client.post("/../tokenize", cast_to=object, body={"prompt": PROMPT})["tokens"]
    request = {"model": target.model, "max_tokens": 8, "temperature": 0}
    text = client.completions.create(**request, prompt=PROMPT)
    one = client.completions.create(**request, prompt=ids)
    many = client.completions.create(**request, prompt=[ids, ids[:-1]], n=2)
    texts = client.completions.create(**request, prompt=[PROMPT, "Another one"])
    assert one.choices[0].text == text.choices[0].text == many.choices[0].text == many.choices[1].text
    assert one.usage.prompt_tokens == text.usage.prompt_tokens == len(ids)
    assert many.usage.prompt_tokens == 2 * len(ids) - 1
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert texts.choices[0].text == text.choices[0].text
    assert len(texts.choices) == 2


def test_sixteen_tokens_by_default(client: openai.OpenAI, target: Target) -> None:
    answer = client.completions.create(model=target.model, prompt=PROMPT, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 16


def test_max_completion_tokens(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(
        model=target.model, messages=QUESTION, max_completion_tokens=3, extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 3
    assert answer.choices[0].finish_reason == "length"


def test_content_parts(client: openai.OpenAI, target: Target) -> None:
    request = {"model": target.model, "max_tokens": 6, "temperature": 0}
    plain = client.chat.completions.create(**request, messages=[{"role": "user", "content": "Hello"}])
    parts = client.chat.completions.create(
        **request, messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    )
    assert parts.choices[0].message.content == plain.choices[0].message.content
    assert parts.usage.prompt_tokens == plain.usage.prompt_tokens


def test_unknown_model(client: openai.OpenAI, target: Target) -> None:
    with pytest.raises(openai.NotFoundError, match=target.model) as caught:
        client.completions.create(model="another", prompt=PROMPT)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 1.01),
        ("n", 0),
        ("seed", 2**63),
        ("stop", [""]),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("best_of", 2),
        ("suffix", "end"),
        ("echo", True),
        ("logprobs", 21),
        ("prompt", [1, "a"]),
        ("prompt", []),
        ("prompt", ""),
        ("prompt", [10**9]),
        ("prompt", [-1]),
    ],
)
def test_bad_values(client: openai.OpenAI, target: Target, param: str, value: object) -> None:
    if (param, value) == ("prompt", "") and _adds_bos(client):
        value = []
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": target.model, "prompt": PROMPT, "max_tokens": 2, param: value})
    assert (caught.value.param or "").startswith(param)
    assert caught.value.type == "invalid_request_error"


def _adds_bos(client: openai.OpenAI) -> bool:
    return client.post("/../tokenize", cast_to=object, body={"prompt": ""})["count"] > 0


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("tools", [TOOL]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("top_logprobs", 2),
        ("messages", []),
        ("messages", [{"role": "user", "content": 5}]),
        ("messages", [{"role": "user"}]),
        ("messages", [{"content": "Hello"}]),
        ("messages", ["Hello"]),
        ("messages", [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
        ("messages", [{"role": "tool", "content": "5", "tool_call_id": "1"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", "hello"),
    ],
)
def test_bad_values_in_chat(client: openai.OpenAI, target: Target, param: str, value: object) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": target.model, "messages": QUESTION, "max_tokens": 2, param: value})
    assert caught.value.param.startswith(param)


def test_what_asks_for_nothing_is_accepted(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(
        model=target.model,
        messages=QUESTION,
        max_tokens=2,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        tool_choice="auto",
        response_format={"type": "text"},
        user="somebody",
        extra_body={"guided_json": None, "repetition_penalty": 1.0, "best_of": 1},
    )
    assert answer.choices[0].message.content


def test_prompt_beyond_the_context(client: openai.OpenAI, target: Target) -> None:
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError, match=str(limit)) as caught:
        client.completions.create(model=target.model, prompt=[5] * limit)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "prompt"
    fits = client.completions.create(model=target.model, prompt=[5] * (limit - 1), max_tokens=10)
    assert fits.usage.completion_tokens == 1
    assert fits.choices[0].finish_reason in ("length", "stop")
