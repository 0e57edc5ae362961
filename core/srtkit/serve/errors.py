"""What a client did wrong, and any error as an HTTP answer in OpenAI's shape. Knows no route and no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from srtkit.serve.frontend import QueueFull
from srtkit.spec.errors import ConfigError, SrtError, Unsupported
from srtkit.text.chat import ChatError

_RETRY_AFTER = {"Retry-After": "1"}  # seconds; a queue moves with every request that ends


class RequestError(SrtError):
    """A request that cannot be served as it is. `part` is the field ("" for the request as a whole)."""

    def __init__(self, part: str, cause: str, remedy: str = "", *, status: int = 400, code: str | None = None) -> None:
        super().__init__(part, cause, remedy)
        self.status = status
        self.code = code


def error_of(error: SrtError) -> tuple[int, dict[str, Any]]:
    """(HTTP status, body) of an error that was raised on purpose."""
    match error:
        case RequestError():
            status, code = error.status, error.code
        case ChatError():
            return 400, error_body(400, f"{error.cause}; {error.remedy}", "messages", "invalid_messages")
        case Unsupported() | ConfigError():
            status, code = 400, None
        case QueueFull():
            status, code = 503, "queue_full"
        case _:
            status, code = 503, "engine_failed"
    text = ": ".join(filter(None, (error.part, error.cause)))
    param = error.part if isinstance(error, RequestError) else None
    return status, error_body(status, f"{text}; {error.remedy}" if error.remedy else text, param, code)


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = {401: "authentication_error", 404: "not_found_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}


def error_response(status: int, body: dict[str, Any]) -> Response:
    """The answer, with Retry-After when the queue is full."""
    return json_response(body, status, _RETRY_AFTER if body["error"]["code"] == "queue_full" else None)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Plain data as JSON."""
    return Response(orjson.dumps(body), status, headers, "application/json")
