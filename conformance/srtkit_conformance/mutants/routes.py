"""Wrong routes, one fault each, and legal ones that work differently. All are made of `admin`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from srtkit.spec.errors import SrtError
from srtkit.spec.routes import Event, Route, RoutesBuild, RoutesDescriptor
from srtkit_conformance.mutant import Make, mutant, variant

Change = Callable[[RoutesBuild, Sequence[Route]], Sequence[Route]]


def _with(change: Change) -> Make:
    """The plugin, whose routes go through `change`."""

    def made(descriptor: RoutesDescriptor) -> RoutesDescriptor:
        return replace(descriptor, build=lambda given: change(given, descriptor.build(given)))

    return made


def _takes_health(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    return [*routes, Route("GET", "/health", routes[0].handler)]


def _twice(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    return [*routes, routes[-1]]


def _aborts_first(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    given.running.abort(None)
    return routes


def _needs_figures(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    assert given.running.stats is not None
    return routes


def _all_is_well(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    def calm(route: Route) -> Route:
        async def handler(request: Request) -> Response:
            try:
                return await route.handler(request)
            except SrtError as error:
                return JSONResponse({"error": error.cause})

        return replace(route, handler=handler)

    return [calm(route) for route in routes]


def _by_hand(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    async def abort(request: Request) -> Response:
        body = json.loads(await request.body())
        return JSONResponse({"aborted": given.running.abort(body["rid"])})

    return [replace(route, handler=abort) if route.path == "/abort_request" else route for route in routes]


def _says_500(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    async def abort(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            return JSONResponse({"aborted": given.running.abort(body["rid"])})
        except (ValueError, LookupError, TypeError) as error:
            return JSONResponse({"error": str(error)}, 500)

    return [replace(route, handler=abort) if route.path == "/abort_request" else route for route in routes]


def _counts_known_ends(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    counts = {"stop": 0, "length": 0, "abort": 0}

    def watch(event: Event) -> None:
        if event.name == "end":
            counts[event.detail] += 1

    given.running.watchers.append(watch)
    return routes


def _not_async(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    def handler(request: Request) -> Response:
        return JSONResponse({})

    return [*routes, Route("GET", "/now", handler)]  # type: ignore[arg-type]


def _elsewhere(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    return [replace(route, path=f"/admin{route.path}") for route in routes]


def _none(given: RoutesBuild, routes: Sequence[Route]) -> Sequence[Route]:
    return ()


takes_health = mutant("routes.takes_health", of="admin", sentence="Offers /health.", killed_by=("routes.places",))(
    _with(_takes_health)
)
twice = mutant(
    "routes.twice",
    of="admin",
    sentence="Offers a route twice.",
    killed_by=("routes.places",),
    note="the other half of that check",
)(_with(_twice))
aborts_first = mutant(
    "routes.aborts_first", of="admin", sentence="Ends all requests when built.", killed_by=("routes.build",)
)(_with(_aborts_first))
needs_figures = mutant(
    "routes.needs_figures",
    of="admin",
    sentence="Needs figures of the engine when built.",
    killed_by=("routes.build",),
    note="raises instead of asking",
)(_with(_needs_figures))
all_is_well = mutant(
    "routes.all_is_well", of="admin", sentence="Answers 200 to every error.", killed_by=("routes.failed",)
)(_with(_all_is_well))
by_hand = mutant("routes.by_hand", of="admin", sentence="Parses bodies by hand.", killed_by=("routes.bodies",))(
    _with(_by_hand)
)
says_500 = mutant(
    "routes.says_500",
    of="admin",
    sentence="Answers 500 to a wrong body.",
    killed_by=("routes.bodies",),
    note="answers instead of raising",
)(_with(_says_500))
counts_known_ends = mutant(
    "routes.counts_known_ends", of="admin", sentence="Its watcher knows three ends.", killed_by=("routes.events",)
)(_with(_counts_known_ends))
not_async = mutant(
    "routes.not_async",
    of="admin",
    sentence="A handler is no coroutine function.",
    killed_by=("routes.bodies",),
    note="of the handler's form",
)(_with(_not_async))
elsewhere = variant("routes.elsewhere", of="admin", sentence="Has them below /admin.")(_with(_elsewhere))
none = variant("routes.none", of="admin", sentence="Offers no route.")(_with(_none))
