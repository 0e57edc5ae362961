"""Routes of the operator: models, health, figures, and operations on what runs."""

import time
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from srtkit.serve.errors import STOPPED, RequestError, json_response
from srtkit.serve.generation import Prompt
from srtkit.serve.requests import json_body, parse
from srtkit.serve.service import Service, in_time, new_id
from srtkit.spec.errors import EngineError
from srtkit.spec.messages import Sampling


class AbortRequest(msgspec.Struct, kw_only=True):
    """The body of /abort_request."""

    rid: str | None = None
    abort_all: bool = False


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes."""
    model = service.model

    @app.get("/v1/models")
    async def list_models() -> Response:
        """The served model."""
        return json_response({"object": "list", "data": [_card(service)]})

    @app.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Response:
        """The served model, by any of its names."""
        model.check_name(name)
        return json_response(_card(service))

    @app.get("/health")
    async def health() -> Response:
        """Whether the engine's processes live. Costs the engine nothing."""
        if service.frontend.failure is not None:
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
            raise service.frontend.failure or EngineError("engine", piece.error)
        return json_response({"status": "ok", "tokens": len(piece.token_ids)})

    @app.get("/server_info")
    async def server_info() -> Response:
        """Wiring, versions, memory and current figures."""
        stats = service.frontend.stats
        card = {**service.info.get("model", {}), **_card(service)}
        figures = {"stats": stats and msgspec.structs.asdict(stats), "memory": await service.control("info")}
        return json_response({**service.info, "model": card, "degraded": service.degraded, **figures})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        """End the request of an id, or all. Those that have ended already are not counted."""
        fields = parse(await json_body(request), AbortRequest, service.unknown_field)
        if fields.rid is None and not fields.abort_all:
            raise RequestError("rid", "either rid or abort_all is required", code="missing_required_parameter")
        return json_response({"aborted": service.abort(None if fields.abort_all else fields.rid)})

    @app.post("/flush_cache")
    async def flush_cache() -> Response:
        """Forget all cached prefixes."""
        return json_response({"flushed": True, "pages": await service.control("flush_cache")})


def _card(service: Service) -> dict[str, Any]:
    model, fixed = service.model, {"object": "model", "owned_by": "srtkit"}
    return {"id": model.name, "created": model.created, "max_model_len": model.max_context, **fixed}
