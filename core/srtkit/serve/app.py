"""The HTTP application: the routes joined, the key checked, every error in OpenAI's shape."""

import hmac

from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from srtkit.serve import admin, chat, completions, native
from srtkit.serve.answers import HUNG_UP
from srtkit.serve.errors import STOPPED, RequestError, error_body, error_response, json_response
from srtkit.serve.service import Service
from srtkit.spec.errors import SrtError


def create_app(service: Service) -> FastAPI:
    """The application of one served model; run it in the event loop that feeds `service`."""
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
    for module in (completions, chat, native, admin):
        module.add_routes(app, service)

    @app.exception_handler(SrtError)
    async def raised(_: Request, error: SrtError) -> Response:
        response = error_response(STOPPED if error is service.frontend.failure else error)
        service.metrics.answered(response.status_code)
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
