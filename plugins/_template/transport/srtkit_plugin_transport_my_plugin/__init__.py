"""Transport `my-plugin`: the descriptor. Data and pure functions; `build` imports the channels."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PositiveInt

from srtkit.spec.capabilities import No
from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.transport import Transport, TransportBuild, TransportCapabilities, TransportDescriptor


class Options(BaseModel):
    """The table `[transport.options.my-plugin]`; a key that is not here is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    bound: PositiveInt = 1024
    """Messages that may wait in a channel before its senders block."""


def capabilities(options: BaseModel) -> TransportCapabilities:
    """One receiver a channel, in the process of its senders."""
    return TransportCapabilities(processes=No("its channels are queues in memory"))


def build(given: TransportBuild) -> Transport:
    """A transport without channels; they appear when an end is opened."""
    from srtkit_plugin_transport_my_plugin.channels import MyPluginTransport

    assert isinstance(given.options, Options)
    return MyPluginTransport(given.options.bound)


@hookimpl
def srtkit_transport() -> TransportDescriptor:
    """Offers the transport `my-plugin`."""
    return TransportDescriptor(contract="1.0", options=Options, capabilities=capabilities, build=build)
