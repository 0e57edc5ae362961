"""What the routes answer. Knows of the server what `Running` says."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from srtkit.spec.messages import Stats
from srtkit.spec.routes import Running


@dataclass(frozen=True)
class MyPluginHandlers:
    """Handlers over one running server. They run in its event loop: await what takes time, block for nothing."""

    running: Running

    async def load(self, request: Request) -> Response:
        """How many sequences run and wait; zeros before the engine's first figures."""
        stats = self.running.stats or Stats()
        return JSONResponse({"running": stats.running, "waiting": stats.waiting})
