"""The route stands where the file says, and answers with the engine's latest figures."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from srtkit.spec.messages import Stats
from srtkit.spec.routes import Route, RoutesBuild
from srtkit_conformance.kits.routes import SuiteService, ask
from srtkit_plugin_routes_my_plugin import Options, srtkit_routes


def only_route(service: SuiteService, path: str = "/my-plugin") -> Route:
    (route,) = srtkit_routes().build(RoutesBuild(Options(path=path), service))
    return route


def test_it_stands_where_the_file_says() -> None:
    assert only_route(SuiteService(), "/load").path == "/load"
    with pytest.raises(ValidationError):
        Options(path="load")


def test_it_answers_with_the_latest_figures() -> None:
    service = SuiteService(stats=None)
    route = only_route(service)
    for stats, wanted in ((None, (0, 0)), (Stats(running=3, waiting=2), (3, 2))):
        service.stats = stats
        answer = json.loads(bytes(ask(route).body))
        assert answer == {"running": wanted[0], "waiting": wanted[1]}
