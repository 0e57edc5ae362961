"""Checks of HTTP routes, without a server: where they stand, what building asks, and what they answer in trouble."""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.responses import Response

from srtkit.spec.errors import SrtError
from srtkit.spec.routes import Event, Route
from srtkit_conformance.check import Failed, Figures, check, expect
from srtkit_conformance.kits.routes import FAILURE, SuiteService, ask, bodies, build
from srtkit_conformance.target import Target

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE"}
OF_CORE = re.compile(r"/(v1/(models|completions|chat/completions)\b.*|health|health_generate|generate|(de)?tokenize)")
EVENTS = (
    Event("first_token", 0.25),
    Event("next_token", 0.01),
    Event("next_token", 0.0),
    *(Event("end", 3600.0, reason) for reason in ("stop", "length", "abort", "error")),
    *(Event("answer", detail=str(status)) for status in (200, 400, 401, 404, 499, 500, 503)),
)


@check(
    "routes.places",
    level=1,
    clause="routes/1.0, Route: a method and a path that nobody else has",
    explain="A route of core's is offered again, one stands twice, or a path lacks its slash.",
)
def places(target: Target) -> Figures:
    routes = build(target, SuiteService())
    places = [(route.method, route.path) for route in routes]
    for method, path in places:
        expect(method in METHODS, "a method that is none, or not in capitals", observed=method)
        expect(path.startswith("/"), "a path without its slash", observed=path)
        expect(not OF_CORE.fullmatch(path), "a path of core's", observed=path)
    expect(len(set(places)) == len(places), "a route stands twice", observed=sorted(places))
    again = [(route.method, route.path) for route in build(target, SuiteService())]
    expect(again == places, "other routes when built again", observed=again, limit=places)
    return {"routes": len(routes)}


@check(
    "routes.build",
    level=1,
    clause="routes/1.0: built once, when the server is ready; nothing that blocks",
    explain="Building asks the engine, ends requests, or needs the event loop, which does not run yet.",
)
def builds(target: Target) -> None:
    service = SuiteService(stats=None, failed=True)
    build(target, service)
    expect(not service.asked, "building asks the service for something", observed=service.asked)


@check(
    "routes.failed",
    level=1,
    clause="routes/1.0: core answers an SrtError that a handler raises; Running.control raises EngineError",
    explain="The error is caught, and the client is told that all is well, or raised as another one.",
)
def failed(target: Target) -> Figures:
    asking = 0
    for route in build(target, service := SuiteService(failed=True)):
        before = len(service.asked)
        answer = _answer(route, b"{}")
        if service.asked[before:] in ([], ["abort"]):
            continue
        asking += 1
        raised = answer is FAILURE or (isinstance(answer, Response) and answer.status_code >= 500)
        expect(raised, f"{route.method} {route.path} hides that the engine has failed", observed=_told(answer))
    return {"routes that ask the engine": asking}


@check(
    "routes.bodies",
    level=1,
    clause="routes/1.0: RequestError as it says; any other exception is a 500",
    explain="A body is parsed by hand, and what the client did wrong becomes a fault of the server's.",
)
def mistaken_bodies(target: Target) -> Figures:
    count = 0
    for route in build(target, SuiteService()):
        for body in bodies():
            answer = _answer(route, body)
            fault = isinstance(answer, Response) and answer.status_code >= 500
            expect(
                not fault, f"{route.method} {route.path} answers a client's mistake with 500", observed=_told(answer)
            )
            count += 1
    return {"bodies": count}


@check(
    "routes.events",
    level=1,
    clause="routes/1.0, Running.watchers: called with every event, in the event loop",
    explain="A watcher raises on what it does not expect, and the request that was being answered fails with it.",
)
def events(target: Target) -> Figures:
    service = SuiteService()
    routes = build(target, service)
    for watcher in service.watchers:
        for event in EVENTS:
            _watch(watcher, event)
    for route in routes:
        _answer(route, b"{}")
    return {"watchers": len(service.watchers)}


def _answer(route: Route, body: bytes) -> Response | SrtError:
    """A handler's answer, or the error that core answers for it."""
    try:
        answer = ask(route, body)
    except SrtError as error:
        return error
    except Exception as error:
        raise Failed(f"{route.method} {route.path} raises {type(error).__name__}", observed=str(error)) from error
    expect(isinstance(answer, Response), f"{route.method} {route.path} answers no Response", observed=repr(answer))
    return answer


def _watch(watcher: Callable[[Event], None], event: Event) -> None:
    try:
        watcher(event)
    except Exception as error:
        raise Failed(f"a watcher raises {type(error).__name__} on {event}", observed=str(error)) from error


def _told(answer: Response | SrtError) -> str:
    return f"{answer.status_code}: {bytes(answer.body)[:200]!r}" if isinstance(answer, Response) else repr(answer)
