"""Any error as an HTTP answer in OpenAI's shape. Knows no route and no engine."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from srtkit.spec.errors import ConfigError, EngineError, RequestError, SrtError, Unsupported

_TYPES = {401: "authentication_error", 404: "not_found_error"}
# What clients are told when the engine has failed. Why is for the operator, in the log.
STOPPED = EngineError("", "the engine has stopped", "its operator's log says why")


def error_response(error: SrtError) -> Response:
    """The answer to an error that was raised on purpose."""
    param = ""
    match error:
        case RequestError():
            status, param, code = error.status, error.part, error.code
        case Unsupported() | ConfigError():
            status, code = 400, "unsupported"
        case _:
            status, code = 503, "engine_failed"
    text = ": ".join(filter(None, (error.part, error.cause))) + (error.remedy and f"; {error.remedy}")
    # In seconds; a full queue moves with every request that ends.
    headers = {"Retry-After": "1"} if code == "queue_full" else None
    return json_response(error_body(status, text, param, code), status, headers)


def error_body(status: int, message: str, param: str = "", code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param or None, "code": code}}


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Plain data as JSON."""
    return Response(orjson.dumps(body), status, headers, "application/json")
