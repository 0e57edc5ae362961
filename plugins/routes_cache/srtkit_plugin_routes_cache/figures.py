"""How full the prefix cache is and how often it helps, from figures that the engine sends anyway."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from srtkit.spec.messages import Stats
from srtkit.spec.routes import Route, Running


def figures_route(running: Running, path: str) -> Route:
    """The route; the engine is asked nothing."""

    async def answer(_: Request) -> Response:
        return Response(orjson.dumps(figures(running.stats or Stats())), media_type="application/json")

    return Route("GET", path, answer)


def figures(stats: Stats) -> dict[str, Any]:
    """Pages by their state, prompt tokens since the start, and the share of these that was cached (null: no tokens)."""
    free = stats.pages_total - stats.pages_used - stats.cached_pages
    states = {"used": stats.pages_used, "cached": stats.cached_pages, "free": free}
    return {
        "pages": {"total": stats.pages_total, **states},
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "hit_rate": stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else None,
        "retracted": stats.retracted,
    }
