"""What a client did wrong, and any error as an HTTP answer in OpenAI's shape. Knows no route and no engine."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from srtkit.serve.frontend import QueueFull
from srtkit.spec.errors import ConfigError, EngineError, SrtError, Unsupported
from srtkit.text.chat import ChatError

_TYPES = {401: "authentication_error", 404: "not_found_error"}
# What clients are told when the engine has failed. Why is for the operator, in the log.
STOPPED = EngineError("", "the engine has stopped", "its operator's log says why")


class RequestError(SrtError):
    """A request that cannot be served as it is. `part` is the field ("" for the request as a whole)."""

    def __init__(
        self, part: str, cause: str, remedy: str = "", *, status: int = 400, code: str = "invalid_value"
    ) -> None:
        super().__init__(part, cause, remedy)
        self.status = status
        self.code = code


def error_response(error: SrtError) -> Response:
    """The answer to an error that was raised on purpose."""
    param, headers = "", None
    match error:
        case RequestError():
            status, param, code = error.status, error.part, error.code
        case ChatError():
            status, param, code = 400, "messages", "invalid_messages"
        case Unsupported() | ConfigError():
            status, code = 400, "unsupported"
        case QueueFull():
            # In seconds; a queue moves with every request that ends.
            status, code, headers = 503, "queue_full", {"Retry-After": "1"}
        case _:
            status, code = 503, "engine_failed"
    text = ": ".join(filter(None, (error.part, error.cause))) + (error.remedy and f"; {error.remedy}")
    return json_response(error_body(status, text, param, code), status, headers)


def error_body(status: int, message: str, param: str = "", code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Plain data as JSON."""
    return Response(orjson.dumps(body), status, headers, "application/json")
