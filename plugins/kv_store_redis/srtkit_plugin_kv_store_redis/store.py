"""The store: requests of bounded size, each with its own timeout; what fails is a miss with a reason.

After a failure the server is left alone for a while: a store that is down must not cost its timeout again
and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from srtkit.spec.errors import ConfigError
from srtkit.spec.kv_store import KEY_BYTES, Blob, KVStore, Reply
from srtkit_plugin_kv_store_redis import RedisOptions
from srtkit_plugin_kv_store_redis.value import content_of, value_of

PART = "kv_store:redis"
REQUEST_KEYS = 16  # of one request for contents: the time is looked at between requests
REQUEST_NAMES = 1024  # of one that carries names only

T = TypeVar("T")
Item = TypeVar("Item")


class RedisStore(KVStore):
    """One client, whose pool has a connection for each thread that is calling."""

    def __init__(self, options: RedisOptions) -> None:
        """Connects to nothing yet. Raises `ConfigError` for a url that is none, or has unknown parameters."""
        trust = {"ssl_ca_certs": options.ca_file} if options.ca_file else {}
        secret = {"password": options.password} if options.password else {}
        seconds = options.timeout_seconds
        try:
            self._client = redis.Redis.from_url(
                options.url,
                protocol=2,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                **trust,
                **secret,
            )
            pool = self._client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # a pool looks at them at its first connection only
        except (ValueError, TypeError) as error:
            raise ConfigError(PART, f"url: {error}", "e.g. rediss://cache.example:6379/0") from None
        self._prefix = options.prefix.encode()
        self._keep = options.keep_seconds
        self._pause = options.retry_seconds
        self._lock = threading.Lock()  # of the two below
        self._resting_until = 0.0
        self._last_error = ""
        self._closed = False

    def put(self, blobs: Sequence[tuple[bytes, Blob]], seconds: float) -> Reply[bool]:
        """Set them; the server's own policy decides what goes when its memory is full, or refuses."""

        def request(part: Sequence[tuple[bytes, Blob]]) -> list[bool]:
            pipeline = self._client.pipeline(transaction=False)
            for key, content in part:
                pipeline.set(self._name(key), value_of(key, content), ex=self._keep)
            return [bool(done) for done in pipeline.execute()]

        return self._in_parts(blobs, REQUEST_KEYS, seconds, request, False)

    def get(self, keys: Sequence[bytes], seconds: float) -> Reply[bytes | None]:
        """The contents of values that are ours and whole. Others are left: they may be somebody else's."""

        def request(part: Sequence[bytes]) -> list[bytes | None]:
            values: Any = self._client.mget([self._name(key) for key in part])
            return [None if value is None else content_of(key, value) for key, value in zip(part, values, strict=True)]

        return self._in_parts(keys, REQUEST_KEYS, seconds, request, None)

    def exists(self, keys: Sequence[bytes], seconds: float) -> Reply[bool]:
        """Whether the keys have values; whose they are shows when they are read."""

        def request(part: Sequence[bytes]) -> list[bool]:
            pipeline = self._client.pipeline(transaction=False)
            for key in part:
                pipeline.exists(self._name(key))
            return [bool(count) for count in pipeline.execute()]

        return self._in_parts(keys, REQUEST_NAMES, seconds, request, False)

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        self._client.close()
        self._client.connection_pool.disconnect()

    def _name(self, key: bytes) -> bytes:
        assert len(key) == KEY_BYTES, "a key has 32 bytes"
        return self._prefix + key

    def _in_parts(
        self, items: Sequence[Item], size: int, seconds: float, request: Callable[[Sequence[Item]], list[T]], miss: T
    ) -> Reply[T]:
        """Requests of `size` items until the time is over or one fails; the rest are misses."""
        deadline = time.monotonic() + seconds
        values: list[T] = []
        error = ""
        for part in _parts(items, size):
            if error := self._refusal(deadline, seconds):
                break
            try:
                values += request(part)
            except redis.ResponseError as problem:  # it answers, and refuses: its memory is full, or it only reads
                error = str(problem)
                break
            except (redis.RedisError, OSError) as problem:
                error = f"{type(problem).__name__}: {problem}"
                with self._lock:
                    self._resting_until, self._last_error = time.monotonic() + self._pause, error
                break
        return Reply((*values, *[miss] * (len(items) - len(values))), error and f"{PART}: {error}")

    def _refusal(self, deadline: float, seconds: float) -> str:
        """Why nothing is asked now; "" if something may be."""
        now = time.monotonic()
        if self._closed:
            return "the store is closed"
        with self._lock:
            if now < self._resting_until:
                return f"not asked again yet after {self._last_error}"
        return f"not done in {seconds:g} s" if now > deadline else ""


def _parts(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
