"""The operator's routes: the contract, and what they ask and answer. tests/serve has them behind a real server."""

from __future__ import annotations

import json

import pytest

from srtkit.spec.capabilities import NoOptions
from srtkit.spec.errors import RequestError
from srtkit.spec.messages import Stats
from srtkit.spec.routes import Event, Route, RoutesBuild
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.routes import SuiteService, ask
from srtkit_plugin_routes_admin import srtkit_routes


def routes(service: SuiteService) -> dict[str, Route]:
    return {route.path: route for route in srtkit_routes().build(RoutesBuild(NoOptions(), service))}


def test_it_keeps_the_contract() -> None:
    assert shortcomings("routes:admin") == []


def test_server_info_joins_what_is_fixed_and_what_moves() -> None:
    service = SuiteService(stats=None)
    route = routes(service)["/server_info"]
    assert json.loads(bytes(ask(route).body))["stats"] is None
    service.stats = Stats(running=2)
    info = json.loads(bytes(ask(route).body))
    assert info["stats"]["running"] == 2
    assert info["model"] == {"id": "suite"}
    assert info["memory"] == {"pages": 100}
    assert service.asked == ["info", "info"]


def test_metrics_count_what_was_seen_since_the_build() -> None:
    tiers = {"host": {"used": 3, "read": 2, "own": 9}, "storage": {"attached": 0}}
    stats = Stats(prompt_tokens=10, cached_tokens=4, tiers=tiers)
    service = SuiteService(stats=stats, degraded=("attention falls back",))
    route = routes(service)["/metrics"]
    (watch,) = service.watchers
    for event in (Event("first_token", 0.2), Event("end", 3.0, "stop"), Event("answer", detail="499")):
        watch(event)
    lines = bytes(ask(route).body).decode().splitlines()
    for line in (
        "srtkit_degraded 1.0",
        "srtkit_cache_hit_rate 0.4",
        "srtkit_ttft_seconds_count 1.0",
        "srtkit_itl_seconds_count 0.0",
        "srtkit_e2e_seconds_sum 3.0",
        'srtkit_sequences_total{finish_reason="stop"} 1.0',
        'srtkit_requests_total{status="499"} 1.0',
        'srtkit_tier_used{tier="host"} 3.0',
        'srtkit_tier_read_total{tier="host"} 2.0',
        'srtkit_tier_attached{tier="storage"} 0.0',
    ):
        assert line in lines
    assert all(line.startswith(("#", "srtkit_")) for line in lines)
    assert not any("tier_pages" in line or "tier_own" in line for line in lines)


def test_abort_wants_to_know_which() -> None:
    service = SuiteService()
    route = routes(service)["/abort_request"]
    with pytest.raises(RequestError, match="either rid or abort_all"):
        ask(route, b"{}")
    assert json.loads(bytes(ask(route, b'{"abort_all": true}').body)) == {"aborted": 0}
    assert service.asked == ["abort"]
