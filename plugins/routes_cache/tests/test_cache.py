"""The cache's figures: the contract, and that the states of pages add up."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from srtkit.spec.messages import Stats
from srtkit.spec.routes import RoutesBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.routes import SuiteService, ask
from srtkit_plugin_routes_cache import CacheOptions, srtkit_routes


def test_it_keeps_the_contract() -> None:
    assert shortcomings("routes:cache") == []


def test_pages_add_up_and_the_engine_is_not_asked() -> None:
    service = SuiteService(
        stats=Stats(pages_total=100, pages_used=30, cached_pages=50, prompt_tokens=8, cached_tokens=2)
    )
    (route,) = srtkit_routes().build(RoutesBuild(CacheOptions(path="/kv"), service))
    assert (route.method, route.path) == ("GET", "/kv")
    answer = json.loads(bytes(ask(route).body))
    assert answer["pages"] == {"total": 100, "used": 30, "cached": 50, "free": 20}
    assert answer["hit_rate"] == 0.25
    assert service.asked == []
    service.stats = None
    assert json.loads(bytes(ask(route).body))["hit_rate"] is None


def test_a_path_has_its_slash() -> None:
    with pytest.raises(ValidationError):
        CacheOptions(path="kv")
