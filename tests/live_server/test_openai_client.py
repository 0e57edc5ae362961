"""The official openai client and plain HTTP against real servers: the same tests as against the engine double."""

from __future__ import annotations

import pytest

from tests.live import LiveServer
from tests.serve.conftest import client, http  # noqa: F401
from tests.serve.running import Target
from tests.serve.test_http import *  # noqa: F403
from tests.serve.test_openai_client import *  # noqa: F403


@pytest.fixture(scope="session")
def target(server: LiveServer) -> Target:
    """The server of the tiny model."""
    return Target(server.base_url, "tiny")
