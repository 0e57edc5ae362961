"""Every door of srtkit on one page: one hook a kind, called once at start; it builds, objects run.

A plugin's entry point (`srtkit.<kind>.v1`, name = the plugin's name) leads to a light module, or an
object in one, that implements exactly one of these hooks and marks it with `@hookimpl`. The module
imports neither torch nor a vendor library: the descriptor it returns is data and pure functions, and
its `build` imports the heavy module when the plugin has been chosen. docs/hooks.md repeats the
signatures; a test compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from srtkit.spec.attention import AttentionDescriptor
    from srtkit.spec.cli import CliCommand
    from srtkit.spec.graph_runner import GraphRunnerDescriptor
    from srtkit.spec.kv_store import KVStoreDescriptor
    from srtkit.spec.model_loader import ModelLoaderDescriptor
    from srtkit.spec.models import ModelsDescriptor
    from srtkit.spec.ops import OpsDescriptor
    from srtkit.spec.platform import PlatformDescriptor
    from srtkit.spec.prefix_cache import PrefixCacheDescriptor
    from srtkit.spec.recurrent import RecurrentDescriptor
    from srtkit.spec.routes import RoutesDescriptor
    from srtkit.spec.transport import TransportDescriptor

PROJECT = "srtkit"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def srtkit_platform() -> PlatformDescriptor:  # type: ignore[empty-body]
    """Called at start for `[platform] use`, and by detection. Must not import torch or touch the device."""


@hookspec
def srtkit_attention() -> AttentionDescriptor:  # type: ignore[empty-body]
    """Called at start for every backend named under `[attention]`. Must not import a kernel library."""


@hookspec
def srtkit_recurrent() -> RecurrentDescriptor:  # type: ignore[empty-body]
    """Called at start for `[recurrent] use`. Must not import a kernel library."""


@hookspec
def srtkit_prefix_cache() -> PrefixCacheDescriptor:  # type: ignore[empty-body]
    """Called at start; the cache is built in the process of the scheduler only. It never imports torch."""


@hookspec
def srtkit_kv_store() -> KVStoreDescriptor:  # type: ignore[empty-body]
    """Called at start for a store that a prefix cache needs. Imports no torch, and its client library in `build`."""


@hookspec
def srtkit_graph_runner() -> GraphRunnerDescriptor:  # type: ignore[empty-body]
    """Called at start for each name of `[graph_runner] use`, in the file's order. Must not import torch."""


@hookspec
def srtkit_model_loader() -> ModelLoaderDescriptor:  # type: ignore[empty-body]
    """Called at start for every named loader; `accepts` then decides by the source's form. No torch."""


@hookspec
def srtkit_transport() -> TransportDescriptor:  # type: ignore[empty-body]
    """Called at start in each process that has channels. Must not import torch."""


@hookspec
def srtkit_ops() -> OpsDescriptor:  # type: ignore[empty-body]
    """Called at start for each name of `[ops] use`, in the file's order. Must not import torch."""


@hookspec
def srtkit_models() -> ModelsDescriptor:  # type: ignore[empty-body]
    """Called at start for every named model family. Must not import torch."""


@hookspec
def srtkit_routes() -> RoutesDescriptor:  # type: ignore[empty-body]
    """Called at start for each name of `[routes] use`. Imports no web framework; `build` does, in the server."""


@hookspec
def srtkit_cli() -> CliCommand:  # type: ignore[empty-body]
    """Called when the user types this sub-command. Must not import torch."""
