"""Routes about the prefix cache: descriptor and options. Imports nothing but the contract."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.routes import Route, RoutesBuild, RoutesDescriptor


class CacheOptions(BaseModel):
    """`[routes.options.cache]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field("/cache", pattern="^/", description="where the figures are")
    prefixes: int = Field(20, ge=0, le=1000, description="prefixes that are listed where the request names no limit")
    tokens: int = Field(
        16, ge=0, le=256, description="tokens of each prefix that are shown, as ids and text: they are clients' prompts"
    )


def build(args: RoutesBuild) -> Sequence[Route]:
    """The routes, over a running service."""
    from srtkit_plugin_routes_cache.routes import routes

    assert isinstance(args.options, CacheOptions)
    return routes(args.running, args.options)


@hookimpl
def srtkit_routes() -> RoutesDescriptor:
    """Offers the routes `cache`."""
    return RoutesDescriptor(contract="1.0", options=CacheOptions, build=build)
