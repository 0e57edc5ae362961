"""Routes of the operator: descriptor only. Imports nothing but the contract; `build` imports the routes."""

from __future__ import annotations

from collections.abc import Sequence

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.routes import Route, RoutesBuild, RoutesDescriptor


def build(args: RoutesBuild) -> Sequence[Route]:
    """/server_info, /metrics, /abort_request and /flush_cache of a running service."""
    from srtkit_plugin_routes_admin.routes import routes

    return routes(args.running)


@hookimpl
def srtkit_routes() -> RoutesDescriptor:
    """Offers the routes `admin`."""
    return RoutesDescriptor(contract="1.0", options=NoOptions, build=build)
