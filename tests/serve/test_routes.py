"""Routes of plugins in the application: behind the key, with core's errors, and never in place of core's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.testclient import TestClient

from srtkit.config.settings import ServerSection
from srtkit.plugins.loaded import LoadedPlugin
from srtkit.serve.app import create_app
from srtkit.serve.service import Service
from srtkit.spec.errors import PluginBroken, RequestError, Unsupported
from srtkit.spec.routes import Route, RoutesBuild
from tests.serve.engine_double import Channel
from tests.serve.running import byte_tokenizer, plugin, served_model

Build = Callable[[RoutesBuild], Sequence[Route]]


def client(build: Build, **settings: Any) -> TestClient:
    """An application with the routes of a plugin that builds them so; no engine is behind it."""
    admin = plugin("routes", "admin")
    toy = LoadedPlugin(admin.wired, replace(admin.descriptor, build=build), admin.options)
    service = Service(Channel(), served_model(byte_tokenizer()), {}, ServerSection(**settings))
    return TestClient(create_app(service, [toy]), raise_server_exceptions=False)


async def hello(request: Request) -> Response:
    return PlainTextResponse(f"hello {request.path_params['name']}")


async def refuse(request: Request) -> Response:
    raise Unsupported("toy", "cannot do this")


async def mistaken(request: Request) -> Response:
    raise RequestError("rid", "it is wrong", status=409, code="taken")


def toy_routes(given: RoutesBuild) -> Sequence[Route]:
    paths = {"/hello/{name}": hello, "/refuse": refuse, "/mistaken": mistaken}
    return [Route("GET", path, handler) for path, handler in paths.items()]


def test_handlers_answer_and_raise() -> None:
    http = client(toy_routes)
    assert http.get("/hello/you").text == "hello you"
    assert http.get("/refuse").status_code == 400
    answer = http.get("/mistaken")
    assert answer.status_code == 409
    assert answer.json()["error"] == {
        "message": "rid: it is wrong",
        "type": "invalid_request_error",
        "param": "rid",
        "code": "taken",
    }


def test_routes_get_the_text_of_token_ids() -> None:
    ids = byte_tokenizer().encode("café")

    def words(given: RoutesBuild) -> Sequence[Route]:
        async def say(request: Request) -> Response:
            return PlainTextResponse(given.running.text([*ids, -1]) or "")

        return [Route("GET", "/words", say)]

    assert client(words).get("/words").text == "<|bos|>café"


def test_the_key_is_asked_for() -> None:
    http = client(toy_routes, api_key="secret")
    assert http.get("/hello/you").status_code == 401
    assert http.get("/hello/you", headers={"Authorization": "Bearer secret"}).text == "hello you"


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("POST", "/generate"), ("GET", "/v1/models")])
def test_a_route_of_core_cannot_be_taken(method: str, path: str) -> None:
    with pytest.raises(PluginBroken, match=f"routes:admin: {method} {path} is there already"):
        client(lambda given: [Route(method, path, hello)])


def test_a_build_that_raises_is_its_plugins_fault() -> None:
    def broken(given: RoutesBuild) -> Sequence[Route]:
        raise ZeroDivisionError

    with pytest.raises(PluginBroken, match="routes:admin: raised ZeroDivisionError"):
        client(broken)
