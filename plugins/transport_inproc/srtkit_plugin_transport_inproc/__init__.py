"""The in-process transport: descriptor and options. Imports nothing but the contract.

The channels are imported by `build`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.transport import Transport, TransportBuild, TransportCapabilities, TransportDescriptor


class InprocOptions(BaseModel):
    """`[transport.options]`: `bound` is how many messages a channel holds before its senders wait."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bound: int = Field(1024, ge=1, description="messages a channel holds before its senders wait")


def capabilities(options: BaseModel) -> TransportCapabilities:
    """Threads of one process."""
    reason = "all ends must be in one process"
    return TransportCapabilities(
        processes=No(reason), fan_out=No("a channel has one receiver; open one a reader"), hosts=No(reason)
    )


def build(args: TransportBuild) -> Transport:
    """The channels of one run. All ends must be opened on this object."""
    from srtkit_plugin_transport_inproc.channels import InprocTransport

    return InprocTransport(args)


@hookimpl
def srtkit_transport() -> TransportDescriptor:
    """Offers the transport `inproc`."""
    return TransportDescriptor(contract="1.0", options=InprocOptions, capabilities=capabilities, build=build)
