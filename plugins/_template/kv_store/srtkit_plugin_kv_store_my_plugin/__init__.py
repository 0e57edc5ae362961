"""Store `my-plugin`: the descriptor. Data and pure functions; `build` imports the store."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveInt

from srtkit.spec.capabilities import No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv_store import KVStore, KVStoreBuild, KVStoreCapabilities, KVStoreDescriptor


class Options(BaseModel):
    """The store's table; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    max_pages: PositiveInt = 100_000
    """Pages that are kept; beyond it those not used for longest go."""


def capabilities(options: BaseModel) -> KVStoreCapabilities:
    """Lives in the process."""
    why = No("its pages are in the memory of one process")
    return KVStoreCapabilities(persistent=why, shared=why)


def build(given: KVStoreBuild) -> KVStore:
    """An empty store."""
    from srtkit_plugin_kv_store_my_plugin.store import MyPluginStore

    assert isinstance(given.options, Options)
    return MyPluginStore(given.options.max_pages)


@hookimpl
def srtkit_kv_store() -> KVStoreDescriptor:
    """Offers the store `my-plugin`."""
    return KVStoreDescriptor(contract="1.0", options=Options, capabilities=capabilities, build=build)
