"""Routes `my-plugin`: the descriptor. Data and pure functions; `build` imports the handlers."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.routes import Route, RoutesBuild, RoutesDescriptor


class Options(BaseModel):
    """The table `[routes.options.my-plugin]`; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str = Field("/my-plugin", pattern="^/")
    """Where the route stands."""


def build(given: RoutesBuild) -> Sequence[Route]:
    """The routes of a running server."""
    from srtkit_plugin_routes_my_plugin.handlers import MyPluginHandlers

    assert isinstance(given.options, Options)
    return (Route("GET", given.options.path, MyPluginHandlers(given.running).load),)


@hookimpl
def srtkit_routes() -> RoutesDescriptor:
    """Offers the routes `my-plugin`."""
    return RoutesDescriptor(contract="1.0", options=Options, build=build)
