"""A service that answers nothing by itself, and requests to a handler without a server. Knows the contract only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from srtkit.spec.errors import EngineError, RequestError
from srtkit.spec.messages import Stats
from srtkit.spec.routes import Event, Route, RoutesBuild
from srtkit_conformance.target import Target

Fields = TypeVar("Fields", bound=msgspec.Struct)
SECONDS = 10.0
FAILURE = EngineError("engine", "has failed, says the suite")
HOST = {"pages": 50, "used": 12, "bytes": 12288, "read": 4, "written": 16, "failed": 0}
FIGURES = Stats(3, 1, 40, 100, 5000, 1200, 700, 2, 1, 900, 10, 25, {"host": HOST})
PREFIX = {"length": 8, "ids": [7, 8], "pages": {"full": [3, 4]}, "namespace": b"", "hits": 2, "pins": 1, "tiers": {}}
LONGER = {"length": 12, "ids": [9, -1], "pages": {"full": [0]}, "namespace": b"secret", "hits": 1, "pins": 0}
CACHE = {
    "pages": {"full": {"total": 100, "free": 60, "in_use": 10, "retiring": 5, "cached": 25, "moving": 0}},
    "cache": {
        "cached_pages": {"full": 25},
        "pinned_pages": {"full": 8},
        "entries": 2,
        "extra": {},
        "tiers": {"host": HOST},
    },
    "prefixes": [{"parent": -1, **PREFIX}, {"parent": 0, **LONGER, "tiers": {"host": 1}}],
}
"""As the engine answers to "cache"."""


@dataclass
class SuiteService:
    """What routes are given. `asked` are the calls, in order, `given` the arguments of the last to the engine.

    `failed`: the engine answers nothing any more. `storage`: there is one to be used.
    """

    failed: bool = False
    stats: Stats | None = FIGURES
    degraded: tuple[str, ...] = ()
    info: Mapping[str, Any] = field(default_factory=lambda: {"model": {"id": "suite"}, "wiring": {}, "memory": {}})
    watchers: list[Callable[[Event], None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    given: Mapping[str, Any] = field(default_factory=dict)
    storage: bool = True

    async def control(self, op: str, **args: Any) -> Any:
        self.asked.append(op)
        self.given = args
        await asyncio.sleep(0)
        if self.failed:
            raise FAILURE
        return {"cache": CACHE, "storage": self.storage}.get(op, {"pages": 100})

    def text(self, ids: Sequence[int]) -> str | None:
        return "".join(f"<{one}>" for one in ids if one >= 0)

    def abort(self, id_: str | None) -> int:
        self.asked.append("abort")
        return 0

    async def read(self, request: Request, kind: type[Fields]) -> Fields:
        try:
            return msgspec.json.decode(await request.body(), type=kind)
        except msgspec.MsgspecError as error:
            raise RequestError("", str(error)) from None


def build(target: Target, service: SuiteService) -> tuple[Route, ...]:
    """The plugin's routes, as core builds them."""
    return tuple(target.descriptor.build(RoutesBuild(target.options, service)))


def ask(route: Route, body: bytes = b"") -> Response:
    """What a route answers. Raises what it raises, `TimeoutError` after some seconds."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": route.method, "path": route.path, "query_string": b"", "headers": []}
    return asyncio.run(_in_time(route.handler(Request({**scope, "path_params": {}}, receive))))


async def _in_time(answer: Awaitable[Response]) -> Response:
    return await asyncio.wait_for(answer, SECONDS)


def bodies() -> Sequence[bytes]:
    """Bodies that clients send by mistake: none, not JSON, of other types, unknown and null fields."""
    texts = ("", "{", "\xff", "null", "[]", '"text"', "7", "{}", '{"rid": 7}', '{"": null}', '{"no_such_field": []}')
    return [*(text.encode("latin-1") for text in texts), json.dumps({"rid": "x" * 10_000}).encode()]
