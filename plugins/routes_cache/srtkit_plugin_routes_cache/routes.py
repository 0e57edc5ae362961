"""The routes: what the cache keeps, and whether storage is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response

from srtkit.spec.errors import RequestError
from srtkit.spec.messages import Stats
from srtkit.spec.routes import Route, Running
from srtkit_plugin_routes_cache import CacheOptions
from srtkit_plugin_routes_cache.figures import figures

MOST = 1000


class Storage(msgspec.Struct, kw_only=True):
    """The body of /cache/storage."""

    attached: bool


def routes(running: Running, options: CacheOptions) -> Sequence[Route]:
    """The routes below the path of the options."""
    cache = _Cache(running, options)
    return (
        Route("GET", options.path, cache.show),
        Route("POST", f"{options.path.rstrip('/')}/storage", cache.use_storage),
    )


@dataclass(frozen=True)
class _Cache:
    running: Running
    options: CacheOptions

    async def show(self, request: Request) -> Response:
        """Figures, and up to `limit` prefixes."""
        limit = _limit(request.query_params.get("limit"), self.options.prefixes)
        answer = await self.running.control("cache", limit=limit, tokens=self.options.tokens)
        return _json(figures(answer, self.running.stats or Stats(), self.running.text))

    async def use_storage(self, request: Request) -> Response:
        """Go on with storage, or without."""
        fields = await self.running.read(request, Storage)
        if not await self.running.control("storage", wanted=fields.attached):
            remedy = 'name a store in the file: use = "hiradix" with a table [prefix_cache.options.storage]'
            raise RequestError("", "this cache has no storage tier", remedy, status=409, code="no_storage")
        return _json({"attached": fields.attached})


def _limit(given: str | None, otherwise: int) -> int:
    if given is None:
        return otherwise
    if not (given.isascii() and given.isdigit() and int(given) <= MOST):
        raise RequestError("limit", f"{given[:20]!r} is not a number from 0 to {MOST}")
    return int(given)


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
