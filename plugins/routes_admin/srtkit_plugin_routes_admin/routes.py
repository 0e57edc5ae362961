"""What an operator asks of a running server: what it is, how it does, and to end or forget something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from srtkit.spec.errors import RequestError
from srtkit.spec.routes import Route, Running
from srtkit_plugin_routes_admin.metrics import Metrics


class AbortRequest(msgspec.Struct, kw_only=True):
    """The body of /abort_request."""

    rid: str | None = None
    abort_all: bool = False


def routes(running: Running) -> Sequence[Route]:
    """The routes; the figures of /metrics count from now on."""
    metrics = Metrics(running)
    running.watchers.append(metrics.observe)
    admin = _Admin(running, metrics)
    return (
        Route("GET", "/server_info", admin.server_info),
        Route("GET", "/metrics", admin.metrics_text),
        Route("POST", "/abort_request", admin.abort_request),
        Route("POST", "/flush_cache", admin.flush_cache),
    )


@dataclass(frozen=True)
class _Admin:
    running: Running
    metrics: Metrics

    async def server_info(self, _: Request) -> Response:
        """Wiring, versions, memory and current figures."""
        stats = self.running.stats
        figures = {"stats": stats and msgspec.structs.asdict(stats), "memory": await self.running.control("info")}
        return _json({**self.running.info, "degraded": self.running.degraded, **figures})

    async def metrics_text(self, _: Request) -> Response:
        """Prometheus' text format."""
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    async def abort_request(self, request: Request) -> Response:
        """End the request of an id, or all. Those that have ended already are not counted."""
        fields = await self.running.read(request, AbortRequest)
        if fields.rid is None and not fields.abort_all:
            raise RequestError("rid", "either rid or abort_all is required", code="missing_required_parameter")
        return _json({"aborted": self.running.abort(None if fields.abort_all else fields.rid)})

    async def flush_cache(self, _: Request) -> Response:
        """Forget all cached prefixes."""
        return _json({"flushed": True, "pages": await self.running.control("flush_cache")})


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
