"""Operators `my-plugin`: the descriptor. Data and pure functions; `build` imports torch.

`accepts` is asked once for each layer; what it refuses goes to the next provider, and at last to core.
"""

from __future__ import annotations

from srtkit.spec.capabilities import YES, Answer, No, NoOptions
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.ops import OpFacts, OpsBuild, OpsDescriptor, OpsProvider

NAMES = frozenset({"rms_norm"})
DTYPES = frozenset({"float32", "bfloat16"})


def accepts(facts: OpFacts) -> Answer:
    """Any size in the dtypes above."""
    return YES if facts.dtype in DTYPES else No(f"has no {facts.dtype}")


def build(given: OpsBuild) -> OpsProvider:
    """The operators. Raise `DeviceAbsent` here when the hardware is not there."""
    from srtkit_plugin_ops_my_plugin.provider import MyPluginOps

    return MyPluginOps()


@hookimpl
def srtkit_ops() -> OpsDescriptor:
    """Offers the operators `my-plugin`."""
    return OpsDescriptor(contract="1.3", options=NoOptions, names=NAMES, accepts=accepts, build=build)
