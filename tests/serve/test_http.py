"""Native and operator routes, and requests no client library would send. For any server."""

from __future__ import annotations

import json

import httpx
import pytest

from srtkit.serve.requests import MAX_BODY
from tests.serve.running import Target

PROMPT = "The KV cache is"


def events(response: httpx.Response) -> list[dict]:
    """The data of all events; the last must be [DONE]."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *found, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(text) for text in found]


def error(response: httpx.Response, status: int) -> dict:
    """The error of an answer, which has OpenAI's four keys."""
    assert response.status_code == status, response.text
    assert response.json().keys() == {"error"}
    found = response.json()["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    assert found["message"]
    return found


def generate(http: httpx.Client, **body: object) -> dict | list:
    response = http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_generate(http: httpx.Client) -> None:
    params = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    by_text = generate(http, text=PROMPT, sampling_params=params)
    ids = http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    by_ids = generate(http, input_ids=ids, sampling_params=params)
    assert by_text["text"] == by_ids["text"]
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert len(by_ids["output_ids"]) == 6
    meta = by_ids["meta_info"]
    assert meta["finish_reason"] == "length"
    assert meta["prompt_tokens"] == len(ids)
    assert meta["completion_tokens"] == 6
    assert meta["id"]


def test_generate_lists(http: httpx.Client) -> None:
    params = {"max_new_tokens": 3, "temperature": 0, "n": 2, "ignore_eos": True}
    results = generate(http, input_ids=[[5, 6, 7], [8]], sampling_params=params)
    assert [result["index"] for result in results] == [0, 1, 2, 3]
    assert [result["meta_info"]["prompt_tokens"] for result in results] == [3, 3, 1, 1]
    assert isinstance(generate(http, text=[PROMPT], sampling_params={"max_tokens": 1}), list)


def test_generate_streams_what_is_new(http: httpx.Client) -> None:
    params = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    whole = generate(http, text=PROMPT, sampling_params=params)
    parts = events(http.post("/generate", json={"text": PROMPT, "sampling_params": params, "stream": True}))
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [id_ for part in parts for id_ in part["output_ids"]] == whole["output_ids"]
    assert [one["token"] for part in parts for one in part["logprobs"]] == [one["token"] for one in whole["logprobs"]]
    assert parts[-1]["meta_info"]["finish_reason"] == "length"
    assert parts[-1]["meta_info"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"input_ids": ["a"]}, "input_ids[0]"),
        ({"input_ids": []}, "input_ids"),
        ({"text": "a", "sampling_params": {"top_p": 2}}, "sampling_params.top_p"),
        ({"text": "a", "sampling_params": {"frequency_penalty": 1}}, "sampling_params.frequency_penalty"),
        ({"text": "a", "sampling_params": {"min_tokens": 9, "max_tokens": 8}}, "min_tokens"),
        ({"text": "a", "sampling_params": {"stop_token_ids": [10**7]}}, "stop_token_ids"),
        ({"text": "a", "sampling_params": {"stop_token_ids": list(range(20, 40))}}, "stop_token_ids"),
        ({"text": "a", "return_logprob": True}, "return_logprob"),
        ({"text": "a", "max_tokens": 5}, "max_tokens"),
        ({"text": "a", "sampling_params": {"stream": True}}, "sampling_params.stream"),
    ],
)
def test_generate_refuses(http: httpx.Client, body: dict, param: str) -> None:
    assert error(http.post("/generate", json=body), 400)["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"text": "a", "temperature": 0}, "put it into sampling_params"),
        ("/generate", {"text": "a", "input_ids": [1]}, "two forms of the prompt; send one"),
        ("/generate", {"prompt": "a"}, "calls it text"),
        ("/generate", {"text": "a", "sampling_params": {"rid": "a"}}, "put it beside sampling_params"),
        ("/v1/completions", {"prompt": "a", "sampling_params": {"max_tokens": 1}}, "at the top level"),
        ("/v1/chat/completions", {"messages": [], "include_usage": True}, "put it into stream_options"),
        ("/tokenize", {"text": "a"}, "calls it prompt"),
        ("/detokenize", {"ids": [1]}, "calls it tokens"),
        ("/v1/completions", {"prompt": "a", "seed": 2**64}, "an integer of 64 bits"),
        ("/generate", {"text": "a", "sampling_params": {"seed": -(2**70)}}, "an integer of 64 bits"),
        ("/v1/chat/completions", {"messages": [{"role": "usr", "content": "a"}]},
         "there is no role 'usr'; roles: system, developer, user, assistant, tool"),
    ],
)  # fmt: skip
def test_a_refusal_says_where_it_belongs(http: httpx.Client, path: str, body: dict, words: str) -> None:
    assert words in error(http.post(path, content=json.dumps(body)), 400)["message"]


def test_developer_is_system(http: httpx.Client) -> None:
    def prompt_tokens(role: str) -> int:
        messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        assert answer.status_code == 200
        return answer.json()["usage"]["prompt_tokens"]

    assert prompt_tokens("developer") == prompt_tokens("system")


@pytest.mark.parametrize("text", ["plain", "  two  spaces\n", "naïve café, 日本, 🙂", "<|end|> written out"])
def test_tokenize_and_back(http: httpx.Client, text: str) -> None:
    tokens = http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
    assert tokens["count"] == len(tokens["tokens"])
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": text}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body", ["", "{", "[1]", '"text"', "{'a': 1}", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 5000, b"\xff"]
)
def test_bad_bodies(http: httpx.Client, path: str, body: str | bytes) -> None:
    found = error(http.post(path, content=body), 400)
    assert found["type"] == "invalid_request_error"
    assert found["code"] == ("invalid_type" if body in ("[1]", '"text"') else "invalid_json")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": {"text": 1}}, "prompt"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"rid": ""}, "rid"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"model": 5}, "model"),
        ({"n": 129}, "n"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ],
)
def test_wrong_types_and_values(http: httpx.Client, target: Target, change: dict, param: str) -> None:
    body = {"model": target.model, "prompt": PROMPT, "max_tokens": 1} | change
    assert error(http.post("/v1/completions", json=body), 400)["param"] == param


@pytest.mark.parametrize(
    ("field", "most", "more", "limit"),
    [
        ("temperature", 100, 100.5, "<= 100"),
        ("temperature", 100, 1e308, "<= 100"),
        ("rid", "é" * 256, "é" * 257, "256"),
    ],
)
def test_what_is_beyond_a_limit_is_told_the_limit(
    http: httpx.Client, field: str, most: object, more: object, limit: str
) -> None:
    whole = {"/v1/completions": {"prompt": PROMPT, "max_tokens": 1}, "/generate": {"text": PROMPT}}
    assert http.post("/v1/completions", json=whole["/v1/completions"] | {field: most}).status_code == 200
    for path, body in whole.items():
        inside = path == "/generate" and field != "rid"
        refused = error(
            http.post(path, json=body | ({"sampling_params": {field: more}} if inside else {field: more})), 400
        )
        assert (refused["param"], refused["code"]) == (f"sampling_params.{field}" if inside else field, "invalid_value")
        assert limit in refused["message"]


def test_null_is_as_left_out(http: httpx.Client) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 2,
        "temperature": None,
        "stop": None,
        "model": None,
        "tools": None,
        "n": None,
    }
    assert http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("top_k", [-1, 0, 3, 10**9])
def test_top_k_off_or_large(http: httpx.Client, top_k: int) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, "top_k": top_k, "temperature": 1e-30}
    assert http.post("/v1/completions", json=body).status_code == 200


def test_no_such_route(http: httpx.Client) -> None:
    assert "/v1/nothing" in error(http.get("/v1/nothing"), 404)["message"]
    error(http.get("/v1/completions"), 405)
    assert error(http.get("/v1/models/another"), 404)["code"] == "model_not_found"


def test_health(http: httpx.Client) -> None:
    assert http.get("/health").json()["status"] == "ok"
    assert http.get("/health_generate").json() == {"status": "ok", "tokens": 1}


def test_server_info(http: httpx.Client, target: Target) -> None:
    info = http.get("/server_info").json()
    assert "memory" in info
    assert info["model"]["id"] == target.model
    assert info["degraded"] == []


def test_flush_cache(http: httpx.Client, target: Target) -> None:
    body = {"prompt": "A long enough text to be cached by pages. " * 8, "max_tokens": 1, "temperature": 0}

    def cached() -> int:
        usage = http.post("/v1/completions", json=body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached()
    assert cached() > 0
    assert http.post("/flush_cache").json()["flushed"] is True
    assert cached() == 0


def test_metrics(http: httpx.Client) -> None:
    def value(name: str) -> float:
        text = http.get("/metrics").text
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(line.split()[1])

    before = value("srtkit_ttft_seconds_count"), value("srtkit_itl_seconds_count")
    generate(http, text=PROMPT, sampling_params={"max_tokens": 60, "n": 2, "ignore_eos": True})
    after = value("srtkit_ttft_seconds_count"), value("srtkit_itl_seconds_count")
    assert after[0] - before[0] == 2
    assert 1 <= after[1] - before[1] <= 2 * 59  # tokens that came together count once
    names = {line.split()[2] for line in http.get("/metrics").text.splitlines() if line.startswith("# HELP")}
    assert all(name.startswith("srtkit_") for name in names)
    wanted = ("running", "waiting", "pages_used", "pages_total", "pages_cached", "cache_hit_rate", "degraded")
    totals = ("prompt_tokens", "output_tokens", "cached_tokens", "aborted", "retracted", "eager_steps", "requests")
    assert {f"srtkit_{name}" for name in wanted} | {f"srtkit_{name}_total" for name in totals} <= names


def test_abort_of_nothing(http: httpx.Client) -> None:
    assert http.post("/abort_request", json={"rid": "never seen"}).json() == {"aborted": 0}
    assert error(http.post("/abort_request", json={}), 400)["param"] == "rid"


def test_a_body_that_is_too_long_is_not_read(http: httpx.Client) -> None:
    found = error(http.post("/tokenize", content=b'"' + b"a" * MAX_BODY + b'"'), 413)
    assert found["code"] == "body_too_large"
    assert http.get("/health").status_code == 200
