"""Pages of KV in local files: descriptor and options. Imports nothing but the contract."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv_store import KVStore, KVStoreBuild, KVStoreCapabilities, KVStoreDescriptor


class FilesOptions(BaseModel):
    """Where the files lie, and how much they may take."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field("~/.cache/srtkit/kv", description="the folder; several servers of one machine may share it")
    max_gib: float = Field(16.0, gt=0, description="GiB of files; beyond it those not used for longest go")


def capabilities(options: BaseModel) -> KVStoreCapabilities:
    """Files outlive the process, and whoever opens the same folder finds them."""
    return KVStoreCapabilities(persistent=YES, shared=YES)


def build(given: KVStoreBuild) -> KVStore:
    """The store over `path`, which is made if need be. Raises `ConfigError` if that cannot be done."""
    from srtkit_plugin_kv_store_files.store import FileStore

    assert isinstance(given.options, FilesOptions)
    return FileStore(given.options)


@hookimpl
def srtkit_kv_store() -> KVStoreDescriptor:
    """Offers the store `files`."""
    return KVStoreDescriptor(contract="1.0", options=FilesOptions, capabilities=capabilities, build=build)
