"""Pages of KV in Redis or Valkey: descriptor and options. Imports nothing but the contract; no client library."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from srtkit.spec.capabilities import YES
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv_store import KVStore, KVStoreBuild, KVStoreCapabilities, KVStoreDescriptor


class RedisOptions(BaseModel):
    """Where the server is, how long it may take, and how long it shall keep pages."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("redis://127.0.0.1:6379/0", description="redis://, rediss:// for TLS, or unix://; may name a user")
    password: str | None = Field(None, repr=False, description="beside the url, so that the url can be shown")
    ca_file: str | None = Field(None, description="certificates to trust with rediss://, instead of the system's")
    prefix: str = Field("srtkit:", description="stands before every key, so that others can use the database, too")
    timeout_seconds: float = Field(0.5, gt=0, description="most that connecting, or one request, may hang")
    retry_seconds: float = Field(1.0, ge=0, description="after a failure, how long calls fail without asking")
    keep_seconds: int | None = Field(None, gt=0, description="pages go so long after they were put; else by maxmemory")

    @model_validator(mode="after")
    def _is_a_url(self) -> RedisOptions:
        if not self.url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError(
                "url begins with none of redis://, rediss:// and unix://; e.g. rediss://cache.example:6379/0"
            )
        if self.ca_file and not self.url.startswith("rediss://"):
            raise ValueError("ca_file is for a url that begins with rediss://, and this one does not")
        return self


def capabilities(options: BaseModel) -> KVStoreCapabilities:
    """The server outlives our processes, and all that use it find the same pages."""
    return KVStoreCapabilities(persistent=YES, shared=YES)


def build(given: KVStoreBuild) -> KVStore:
    """The store; connects with the first call. Raises `ConfigError` for a url that is none."""
    from srtkit_plugin_kv_store_redis.store import RedisStore

    assert isinstance(given.options, RedisOptions)
    return RedisStore(given.options)


@hookimpl
def srtkit_kv_store() -> KVStoreDescriptor:
    """Offers the store `redis`."""
    return KVStoreDescriptor(contract="1.0", options=RedisOptions, capabilities=capabilities, build=build)
