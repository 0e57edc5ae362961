"""The source of a plugin that a test installs as `aiter-double`: aiter's descriptor over the double, on a CPU.

The device passes for an MI300X. The double computes in float32, so float32 is let through: tokens can then be those of
the recorded reference, which is in float32 too. All else is the plugin as it is.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import srtkit_plugin_attention_aiter as plugin
from srtkit.spec.attention import (
    AttentionBackend,
    AttentionBuild,
    AttentionCapabilities,
    AttentionDescriptor,
    AttentionSpec,
)
from srtkit.spec.capabilities import NoOptions
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.kv import KVLayout

MI300X = DeviceFacts("rocm", "assumed MI300X", "gfx942", fp8="e4m3fnuz")


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """Those of the MI300X, with float32."""
    can = plugin.declared(MI300X.architecture)
    return replace(can, dtypes=can.dtypes | {"float32"}, kv_dtypes=can.kv_dtypes | {"float32"})


def kv_layouts(spec: AttentionSpec, page_size: int, facts: DeviceFacts) -> Sequence[KVLayout]:
    """Those of the MI300X."""
    return plugin.kv_layouts(spec, page_size, MI300X)


def build(request: AttentionBuild) -> AttentionBackend:
    """The plugin's backend over the double."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is declared, so before the plugin's are imported
    import torch

    from plugins.attention_aiter.tests import double
    from plugins.attention_aiter.tests.conftest import stored
    from srtkit_plugin_attention_aiter import mha, mla

    double.HALVES = (*double.HALVES, torch.float32)
    mha.store = mla.store = stored
    aiter = double.Double(MI300X.architecture, newer=False, log=deque(maxlen=0))
    kind = mha.MhaAttention if request.group.spec.mla is None else mla.MlaAttention
    return kind(replace(request, options=NoOptions()), aiter.library())


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers the same as `aiter`."""
    return replace(plugin.srtkit_attention(), capabilities=capabilities, kv_layouts=kv_layouts, build=build)
