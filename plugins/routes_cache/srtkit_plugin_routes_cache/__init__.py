"""A route with the figures of the prefix cache: descriptor and options. Imports nothing but the contract."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.routes import Route, RoutesBuild, RoutesDescriptor


class CacheOptions(BaseModel):
    """`[routes.options.cache]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field("/cache", pattern="^/", description="where the figures are")


def build(args: RoutesBuild) -> Sequence[Route]:
    """The route, over the figures of a running service."""
    from srtkit_plugin_routes_cache.figures import figures_route

    assert isinstance(args.options, CacheOptions)
    return (figures_route(args.running, args.options.path),)


@hookimpl
def srtkit_routes() -> RoutesDescriptor:
    """Offers the routes `cache`."""
    return RoutesDescriptor(contract="1.0", options=CacheOptions, build=build)
