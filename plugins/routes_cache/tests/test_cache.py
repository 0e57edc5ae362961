"""The cache's routes: the contract, what they ask the engine, and what they make of its answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request

from srtkit.spec.errors import RequestError
from srtkit.spec.messages import Stats
from srtkit.spec.routes import Route, RoutesBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.routes import SuiteService, ask
from srtkit_plugin_routes_cache import CacheOptions, srtkit_routes


def routes(service: SuiteService, **options: Any) -> dict[str, Route]:
    return {one.path: one for one in srtkit_routes().build(RoutesBuild(CacheOptions(**options), service))}


def get(route: Route, query: str) -> dict[str, Any]:
    scope = {"type": "http", "method": "GET", "path": route.path, "query_string": query.encode(), "headers": []}
    found: dict[str, Any] = json.loads(bytes(asyncio.run(_answer(route, Request(scope)))))
    return found


async def _answer(route: Route, request: Request) -> bytes:
    return bytes((await route.handler(request)).body)


def test_it_keeps_the_contract() -> None:
    assert shortcomings("routes:cache") == []


def test_figures_are_the_engines_with_its_latest_stats() -> None:
    service = SuiteService(stats=Stats(prompt_tokens=8, cached_tokens=2))
    route = routes(service, path="/kv")["/kv"]
    answer = get(route, "limit=7")
    assert service.asked == ["cache"]
    assert service.given == {"limit": 7, "tokens": 16}
    assert answer["hit_rate"] == 0.25
    counts = {"total": 100, "free": 60, "in_use": 10, "retiring": 5, "cached": 25, "moving": 0, "pinned": 8}
    assert answer["pages"] == {"full": counts}
    assert answer["tiers"]["device"] == {"pages": 100, "used": 40}
    assert answer["tiers"]["host"]["used"] == 12
    parent, child = answer["prefixes"]
    assert (parent["text"], parent["pages"], parent["namespace"]) == ("<7><8>", {"full": 2}, "")
    assert (child["parent"], child["length"], child["tokens"], child["pages"]) == (0, 12, 4, {"full": 0})
    assert len(child["namespace"]) == 8
    assert "secret" not in json.dumps(answer)
    service.stats = None
    assert get(route, "")["hit_rate"] is None
    assert service.given["limit"] == 20


@pytest.mark.parametrize("limit", ["-1", "1001", "", "x", "²"])
def test_a_limit_is_a_number(limit: str) -> None:
    with pytest.raises(RequestError, match="0 to 1000"):
        get(routes(SuiteService())["/cache"], f"limit={limit}")


def test_storage_is_switched_where_there_is_one() -> None:
    service = SuiteService()
    route = routes(service)["/cache/storage"]
    assert route.method == "POST"
    assert json.loads(bytes(ask(route, b'{"attached": false}').body)) == {"attached": False}
    assert (service.asked, service.given) == (["storage"], {"wanted": False})
    service.storage = False
    with pytest.raises(RequestError, match="no storage tier") as refused:
        ask(route, b'{"attached": true}')
    assert refused.value.status == 409


def test_a_path_has_its_slash() -> None:
    with pytest.raises(ValidationError):
        CacheOptions(path="kv")
