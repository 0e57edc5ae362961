"""The routes contract, `routes/1.0`: HTTP routes beside those of core, for operators and for other APIs.

They are built once, when the server is ready, and run in its event loop: no torch, nothing that blocks. Core checks
the API key before a handler runs, and answers an `SrtError` that it raises in OpenAI's shape: `RequestError` as it
says, `Unsupported` and `ConfigError` with 400, others with 503; any other exception is a 500.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec
from pydantic import BaseModel

from srtkit.spec.capabilities import Descriptor

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from srtkit.spec.messages import Stats

_Fields = TypeVar("_Fields", bound=msgspec.Struct)


class Event(NamedTuple):
    """Something that the HTTP side has seen.

    "first_token" and "next_token" of a sequence, `seconds` after its request arrived or after the token before;
    "end" of a sequence, `seconds` after the arrival, `detail` its finish reason; "answer" to a request that generates,
    or an error, `detail` the HTTP status (499: the client hung up).
    """

    name: Literal["first_token", "next_token", "end", "answer"]
    seconds: float = 0.0
    detail: str = ""


class Running(Protocol):
    """The running service, as routes may use it.

    `info` is what is fixed since the start, as plain data (model, wiring, memory); `degraded` has a sentence for each
    fallback in use; `stats` are the engine's latest figures, None before the first. `watchers` are called with every
    event, in the event loop; routes may append to them.
    """

    info: Mapping[str, Any]
    degraded: tuple[str, ...]
    stats: Stats | None
    watchers: list[Callable[[Event], None]]

    def control(self, op: str, **args: Any) -> Awaitable[Any]:
        """Have the engine do an operation ("info", "flush_cache", "cache", "storage"); its answer.

        Raises `EngineError` when it refuses or has failed, `TransportTimeout` when it does not answer.
        """

    def text(self, ids: Sequence[int]) -> str | None:
        """The text of token ids; None where the model has no tokenizer."""

    def abort(self, id_: str | None) -> int:
        """End the request of an id, or all (None); how many ran. They answer with what there is."""

    def read(self, request: Request, kind: type[_Fields]) -> Awaitable[_Fields]:
        """A request's JSON body, checked as core checks its own. Raises `RequestError`."""


@dataclass(frozen=True)
class Route:
    """One route: `method` and `path` ("/cache", "/pages/{id:int}") that nobody else has, and what answers."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class RoutesBuild:
    """What core gives routes at build."""

    options: BaseModel
    running: Running
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class RoutesDescriptor(Descriptor):
    """What a plugin's hook returns."""

    build: Callable[[RoutesBuild], Sequence[Route]]
