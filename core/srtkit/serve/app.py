"""The HTTP application: the routes joined, the key checked, every error in OpenAI's shape.

Here are the routes about the server itself, models and health; those of plugins come in last.
"""

import hmac
import time
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from srtkit.plugins.loaded import LoadedPlugin
from srtkit.plugins.loading import calling
from srtkit.serve import native, openai
from srtkit.serve.answers import HUNG_UP
from srtkit.serve.errors import STOPPED, error_body, error_response, json_response
from srtkit.serve.generation import Prompt
from srtkit.serve.service import Service, in_time, new_id
from srtkit.spec.errors import EngineError, PluginBroken, RequestError, SrtError
from srtkit.spec.messages import Sampling
from srtkit.spec.routes import Event, Route, RoutesBuild


def create_app(service: Service, plugins: Sequence[LoadedPlugin] = ()) -> FastAPI:
    """The application of one served model, with the routes of `plugins`; run it in the event loop that feeds `service`.

    Raises `PluginBroken` when a plugin's routes cannot be built or are taken.
    """
    expected = service.settings.api_key

    async def check_key(request: Request) -> None:
        if expected is None or request.url.path == "/health":  # load balancers have no key
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode("latin-1"), expected.encode()):
            cause, remedy = "the API key is missing or wrong", "send it as a bearer token"
            raise RequestError("", cause, remedy, status=401, code="invalid_api_key")

    # The pages of API documentation would load scripts from the net.
    app = FastAPI(title="srtkit", docs_url=None, redoc_url=None, dependencies=[Depends(check_key)])
    openai.add_routes(app, service)
    native.add_routes(app, service)
    _add_routes(app, service)
    for plugin in plugins:
        _mount(app, service, plugin)

    @app.exception_handler(SrtError)
    async def raised(_: Request, error: SrtError) -> Response:
        response = error_response(STOPPED if error is service.failure else error)
        service.tell(Event("answer", detail=str(response.status_code)))
        return response

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        return json_response(error_body(error.status_code, message), error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def hung_up(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=HUNG_UP)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> Response:
        # Starlette raises it again after the answer, so its traceback is in the log.
        ours = RequestError("", f"internal error: {type(error).__name__}", status=500, code="internal_error")
        return await raised(_, ours)

    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    model = service.model

    @app.get("/v1/models")
    async def list_models() -> Response:
        """The served model."""
        return json_response({"object": "list", "data": [model.card()]})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        """The served model, by any of its names."""
        model.check_name(name)
        return json_response(model.card())

    @app.get("/health")
    async def health() -> Response:
        """Whether the engine's processes live. Costs the engine nothing."""
        if service.failure is not None:
            return json_response({"status": "failed", "error": STOPPED.cause}, 503)
        return json_response({"status": "degraded" if service.degraded else "ok", "degraded": service.degraded})

    @app.get("/health_generate")
    async def health_generate() -> Response:
        """Whether the engine makes a token."""
        prompt = Prompt([0], Sampling(temperature=0.0, max_tokens=1))
        job = service.open([prompt], new_id("health"), time.monotonic())
        try:
            (piece,) = await in_time(job.whole())
        finally:
            service.close(job)
        if piece.finish_reason == "error":
            raise service.failure or EngineError("engine", piece.error)
        return json_response({"status": "ok", "tokens": len(piece.token_ids)})


def _mount(app: FastAPI, service: Service, plugin: LoadedPlugin) -> None:
    offer = plugin.wired.offer
    with calling(offer):
        routes: Sequence[Route] = plugin.descriptor.build(RoutesBuild(plugin.options, service))
    taken = {(method, one.path) for one in app.routes if isinstance(one, APIRoute) for method in one.methods or ()}
    for route in routes:
        if (route.method, route.path) in taken:
            remedy = f"leave one of them out: [routes] use; this one is of {offer}"
            raise PluginBroken(offer.part, f"{route.method} {route.path} is there already", remedy)
        app.add_api_route(route.path, _handle(route), methods=[route.method])


def _handle(route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:  # of this signature, whatever the plugin's is
        return await route.handler(request)

    return handle
