"""A real Redis: foreign values, passwords, TLS, a server that is down, slow, full or restarted."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis
from pydantic import ValidationError

from srtkit.spec.errors import ConfigError
from srtkit.spec.kv_store import KEY_BYTES, KVStore, KVStoreBuild, Reply
from srtkit_conformance.inside import shortcomings
from srtkit_conformance.kits.kv_store.redis_server import MISSING, RedisServer, installed, redis_server
from srtkit_plugin_kv_store_redis import RedisOptions, build
from srtkit_plugin_kv_store_redis.value import content_of, value_of

KEYS = [bytes([number]) * KEY_BYTES for number in range(64)]
PAGE = bytes(range(256)) * 40
Store = Callable[..., KVStore]

pytestmark = pytest.mark.skipif(not installed(), reason=MISSING)


@pytest.fixture(name="server")
def server_fixture(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture(name="plain")
def plain_fixture(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture(name="store")
def store_fixture() -> Iterator[Store]:
    """URL and options → a store, closed when the test is over: a socket left open is a warning later."""
    with ExitStack() as opened:

        def make(url: str, **options: object) -> KVStore:
            one = build(KVStoreBuild(RedisOptions.model_validate({"url": url, "retry_seconds": 0.1, **options})))
            opened.callback(one.close)
            return one

        yield make


def test_it_keeps_the_contract() -> None:
    assert shortcomings("kv_store:redis", level=1) == []


def test_values_of_others_are_misses_and_stay(server: RedisServer, store: Store, plain: redis.Redis) -> None:
    one = store(server.url, prefix="p:")
    one.put([(KEYS[0], PAGE)], 5.0)
    mine = plain.get(b"p:" + KEYS[0])
    assert isinstance(mine, bytes)
    others = [b"", b"SRK1", b"something else", mine[:-1], mine + b"\0", b"SRK2" + mine[4:], mine]
    for number, value in enumerate(others, 1):
        plain.set(b"p:" + KEYS[number], value)
    assert one.get(KEYS[:8], 5.0) == Reply((PAGE, *[None] * 7))
    assert plain.get(b"p:" + KEYS[7]) == mine
    plain.delete(b"p:" + KEYS[1])
    plain.lpush("p:" + KEYS[1].decode(), "a list")  # of another type altogether
    assert one.get(KEYS[:2], 5.0).values == (PAGE, None)


def test_a_change_of_any_byte_is_seen() -> None:
    value = value_of(KEYS[3], PAGE[:20])
    assert content_of(KEYS[3], value) == PAGE[:20]
    assert content_of(KEYS[4], value) is None
    for at in range(len(value)):
        assert content_of(KEYS[3], value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]) is None


def test_prefixes_part_users_of_one_database(server: RedisServer, store: Store) -> None:
    one, other = store(server.url, prefix="a:"), store(server.url, prefix="b:")
    one.put([(KEYS[0], PAGE)], 5.0)
    assert other.exists(KEYS[:1], 5.0).values == (False,)


def test_a_password_is_asked_for(tmp_path: Path, store: Store) -> None:
    with redis_server(tmp_path, "--requirepass", "open sesame") as server:
        assert store(server.url, password="open sesame").put([(KEYS[0], PAGE)], 5.0) == Reply((True,))
        for wrong in ({}, {"password": "wrong"}):
            reply = store(server.url, **wrong).get(KEYS[:1], 5.0)
            assert reply.values == (None,)
            assert "Auth" in reply.error


def self_signed(folder: Path, name: str) -> tuple[str, list[str]]:
    """A certificate for a host of that name, which is its own authority, and how a server is started with it."""
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-keyout", key, "-out", certificate, "-subj", f"/CN={name}", "-days", "2"]
    subprocess.run([*make, "-addext", f"subjectAltName=DNS:{name}"], check=True, capture_output=True)
    return certificate, ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-auth-clients", "no"]


def test_it_speaks_tls_and_trusts_only_whom_it_is_told_to(tmp_path: Path, store: Store) -> None:
    certificate, tls = self_signed(tmp_path, "localhost")
    with redis_server(tmp_path, *tls, tls=True) as server:
        url = f"rediss://localhost:{server.port}/0"
        assert store(url, ca_file=certificate).put([(KEYS[0], PAGE)], 5.0) == Reply((True,))
        reply = store(url).get(KEYS[:1], 5.0)
        assert reply.values == (None,)
        assert "certificate" in reply.error


def test_a_trusted_certificate_for_another_host_is_refused(store: Store, tmp_path: Path) -> None:
    certificate, tls = self_signed(tmp_path, "elsewhere")
    with redis_server(tmp_path, *tls, tls=True) as server:
        reply = store(f"rediss://localhost:{server.port}/0", ca_file=certificate).get(KEYS[:1], 5.0)
        assert reply.values == (None,)
        assert "certificate is not valid for" in reply.error


def test_a_server_that_is_down_costs_nothing_until_it_is_asked_again(server: RedisServer, store: Store) -> None:
    one = store(server.url, retry_seconds=30.0)
    one.put([(KEYS[0], PAGE)], 5.0)
    server.stop()
    assert one.get(KEYS[:1], 5.0).values == (None,)
    started = time.monotonic()
    for _ in range(100):
        reply = one.get(KEYS[:1], 5.0)
    assert time.monotonic() - started < 0.1
    assert "not asked again yet" in reply.error


def test_it_comes_back_when_the_server_does(server: RedisServer, store: Store) -> None:
    one = store(server.url, retry_seconds=0.0)
    one.put([(KEYS[0], PAGE)], 5.0)
    server.stop()
    assert one.put([(KEYS[1], PAGE)], 5.0).values == (False,)
    server.start()
    assert one.get(KEYS[:1], 5.0) == Reply((None,))  # it kept nothing on disk
    assert one.put([(KEYS[1], PAGE)], 5.0) == Reply((True,))
    assert one.get(KEYS[1:2], 5.0) == Reply((PAGE,))


def test_a_server_that_never_answers_is_given_up_in_time(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = store(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", timeout_seconds=0.1)
        started = time.monotonic()
        for call in (one.get, one.exists):
            reply = call(KEYS, 0.2)
            assert not any(reply.values) and reply.error
        assert time.monotonic() - started < 1.0


def test_a_full_server_refuses_writes_and_still_reads(tmp_path: Path, store: Store) -> None:
    with redis_server(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
        one = store(server.url, retry_seconds=60.0)
        one.put([(KEYS[0], PAGE)], 5.0)
        reply = one.put([(KEYS[1], bytes(4 << 20)), (KEYS[2], PAGE)], 5.0)
        assert not all(reply.values) or not one.put([(KEYS[3], PAGE)], 5.0).values[0]
        assert one.get(KEYS[:1], 5.0).values == (PAGE,)


def test_pages_go_after_their_time(server: RedisServer, store: Store, plain: redis.Redis) -> None:
    store(server.url, keep_seconds=77).put([(KEYS[0], PAGE)], 5.0)
    [name] = plain.keys()
    assert 0 < plain.ttl(name) <= 77


def test_a_url_that_is_none_is_said_at_start(store: Store) -> None:
    with pytest.raises(ValidationError, match="rediss://"):
        store("http://localhost")


def test_parameters_that_no_connection_takes_are_said_at_start(store: Store) -> None:
    with pytest.raises(ConfigError, match="foo"):
        store("redis://127.0.0.1:6379/0?foo=1")
    for url in ("redis://127.0.0.1", "unix:///run/redis.sock"):
        with pytest.raises(ValidationError, match="begins with rediss://"):
            RedisOptions(url=url, ca_file="ca.pem")
    assert RedisOptions(url="rediss://127.0.0.1", ca_file="ca.pem").ca_file
