"""Servers for the tests of the HTTP side. `target` is what a test gets that any server must pass."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.serve.running import Running, Target, serving


@pytest.fixture(scope="session")
def double() -> Iterator[Running]:
    """A server over the engine double; nobody stops or holds its engine."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def target(double: Running) -> Target:
    """The server that the tests of behaviour run against."""
    return double.target


@pytest.fixture
def client(target: Target) -> Iterator[openai.OpenAI]:
    """The official client of `target`; it does not try again."""
    with openai.OpenAI(base_url=f"{target.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(target: Target) -> Iterator[httpx.Client]:
    """A plain client of `target`."""
    with httpx.Client(base_url=target.base_url, timeout=30) as client:
        yield client
