"""The ZeroMQ transport: descriptor and options. Imports nothing but the contract.

pyzmq is imported by `build`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.capabilities import YES, No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.transport import Transport, TransportBuild, TransportCapabilities, TransportDescriptor


class ZmqOptions(BaseModel):
    """`[transport.options]`: `bound` is how many messages each sender may be ahead of its receiver."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bound: int = Field(1024, ge=1, description="messages each sender may be ahead of its receiver before it waits")


def capabilities(options: BaseModel) -> TransportCapabilities:
    """Processes of one host."""
    return TransportCapabilities(
        processes=YES,
        fan_out=No("a channel has one receiver; open one a reader"),
        hosts=No("its sockets are files of this host"),
    )


def build(args: TransportBuild) -> Transport:
    """The channels under `args.folder`. Raises `TransportError` if the folder is missing or not private."""
    from srtkit_plugin_transport_zmq.transport import ZmqTransport

    return ZmqTransport(args)


@hookimpl
def srtkit_transport() -> TransportDescriptor:
    """Offers the transport `zmq`."""
    return TransportDescriptor(contract="1.0", options=ZmqOptions, capabilities=capabilities, build=build)
