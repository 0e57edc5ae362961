"""Request bodies: what fields exist, what values they take, which are known but not done yet.

Types and bounds are declared on the fields; msgspec checks them. Knows nothing of tokens or answers.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from importlib.resources import files
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import Meta
from starlette.requests import Request

from srtkit.spec.errors import RequestError

T = TypeVar("T", bound=msgspec.Struct)
# Told of a field nobody knows (its path), and of those that are known there.
Unknown = Callable[[str, Collection[str]], None]

Text = Annotated[str, Meta(min_length=1)]
Rid = Annotated[str, Meta(min_length=1, max_length=256)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Tokens = Annotated[int, Meta(ge=1)]
Logprobs = Annotated[int, Meta(ge=0, le=20)]
# Bytes of the longest body that is read.
MAX_BODY = 32 << 20


class GenerationFields(msgspec.Struct, kw_only=True):
    """How to choose tokens and when to end; common to all routes that generate. None: the model's default.

    Choice i of `n` uses `seed` + i. `top_k` -1 or 0, `top_p` 1 and `min_p` 0 are off; `temperature` 0 is greedy.
    Prompts of different `cache_salt` or `extra_key` share no cached pages.
    """

    n: Annotated[int, Meta(ge=1, le=128)] = 1
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    max_new_tokens: Tokens | None = None
    min_tokens: Annotated[int, Meta(ge=0)] = 0
    stop: Text | Annotated[list[Text], Meta(max_length=16)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Int64 = 0
    cache_salt: str = ""
    extra_key: str = ""


class OpenAIRequest(GenerationFields, kw_only=True):
    """What completions and chat share. `rid` names the request for /abort_request and becomes the answer's id."""

    model: str = "default"
    rid: Rid | None = None
    stream: bool = False
    stream_options: dict[str, Any] = {}


# What other servers, or another route of this one, take in another place.
AT_THE_TOP = dict.fromkeys(("sampling_params", "extra_body"), "on this route its fields stand at the top level")
AT_THE_TOP |= {"include_usage": "put it into stream_options", "input_ids": "prompt takes token ids, too"}


class StreamOptions(msgspec.Struct):
    """The table `stream_options`."""

    include_usage: bool = False


_FIELDS = tomllib.loads(files("srtkit.serve").joinpath("fields.toml").read_text("utf-8"))
# Fields we know of and do not do yet, with the values (besides null) that ask for nothing.
NOT_YET: Mapping[str, list[object]] = _FIELDS["not_yet"]
# Fields that are right to accept and change nothing in an answer of this server.
NO_EFFECT = frozenset(_FIELDS["no_effect"])


async def json_body(request: Request) -> object:
    """Raises `RequestError` for what is not JSON, and as soon as a body is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            cause = f"the body has more than {MAX_BODY >> 20} MiB"
            raise RequestError("", cause, "send less at once", status=413, code="body_too_large")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError("", f"the body is not valid JSON: {error}", code="invalid_json") from None


def parse(raw: object, kind: type[T], unknown: Unknown, path: str = "", elsewhere: Mapping[str, str] = {}) -> T:
    """Plain data as a request. `unknown` is told each field nobody knows; `path` stands before names in errors.

    A null is a field that was left out. Raises `RequestError` naming the field; `elsewhere` says of fields that have
    another place where that is.
    """
    if not isinstance(raw, dict):
        raise RequestError(path.rstrip("."), "a JSON object is expected", code="invalid_type")
    given = {name: value for name, value in raw.items() if value is not None}
    for name, value in given.items():
        if name in kind.__struct_fields__ or name in NO_EFFECT:
            continue
        if name in elsewhere:
            raise RequestError(path + name, "it has no effect here", elsewhere[name], code="misplaced_parameter")
        if name not in NOT_YET:
            unknown(path + name, kind.__struct_fields__)
        elif value not in NOT_YET[name]:
            cause = "this server does not support it yet"
            raise RequestError(path + name, cause, "leave it out", code="unsupported_parameter")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _mistake(str(error), path, given) from None


def _mistake(text: str, path: str, given: Mapping[str, Any]) -> RequestError:
    """msgspec's sentence, with the field apart from it."""
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", text):
        return RequestError(path + missing[1], "it is required", code="missing_required_parameter")
    cause, _, place = text.partition(" - at `$.")
    place, value = place.rstrip("`"), given.get(place.rstrip("`"))
    if isinstance(value, float | int) and "`int" in cause and abs(value) >= 2**63:  # JSON reads long ones as floats
        cause = "expected an integer of 64 bits, from -2^63 to 2^63-1"
    return RequestError(path + place, cause[:1].lower() + cause[1:])
