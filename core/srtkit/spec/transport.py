"""The transport contract, `transport/1.0`: one-way channels of byte messages between processes.

A channel has one name, one receiver and any number of senders, or (`fan_out`) one sender and several
receivers that all get the same bytes. A message is one or more byte frames, delivered whole, in order
per sender, at most once. What the frames mean is `srtkit.spec.messages`; a transport never looks inside.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.capabilities import NOT_DECLARED, Answer, Descriptor

Frame = bytes | memoryview
Frames = Sequence[Frame]


class Sender(ABC):
    """The sending end of a channel. One thread."""

    @abstractmethod
    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        """Queue a message. The frames may be reused when it returns.

        Blocks while the receiver is behind by more than the channel's bound; raises `TransportTimeout`
        after `timeout` seconds and `PeerGone` when the receiver has closed or died.
        """

    @abstractmethod
    def close(self) -> None:
        """Deliver what is queued (at most a second), then close. Idempotent."""


class Receiver(ABC):
    """The receiving end of a channel. One thread."""

    @abstractmethod
    def receive(self, timeout: float | None) -> list[bytes] | None:
        """The next message; None when `timeout` seconds passed (0: do not wait, None: no limit)."""

    @abstractmethod
    def drain(self, timeout: float | None) -> list[list[bytes]]:
        """All messages that have arrived; waits up to `timeout` for the first."""

    @abstractmethod
    def close(self) -> None:
        """Close; senders then see `PeerGone`. Idempotent."""


class Transport(ABC):
    """Channels of one run. Every process of the run builds one from the same address."""

    @abstractmethod
    def receiver(self, channel: str) -> Receiver:
        """Open the receiving end. Once per channel and process; before or after the senders."""

    @abstractmethod
    def sender(self, channel: str) -> Sender:
        """Open a sending end."""

    @abstractmethod
    def close(self) -> None:
        """Close every end opened here and remove what it created. Idempotent."""


@dataclass(frozen=True)
class TransportCapabilities:
    """What a transport can do. `processes` no: all ends must be in one process."""

    processes: Answer = NOT_DECLARED
    fan_out: Answer = NOT_DECLARED
    hosts: Answer = NOT_DECLARED


@dataclass(frozen=True)
class TransportBuild:
    """What core gives a transport at build: a private folder (mode 700) shared by the run's processes."""

    folder: Path
    options: BaseModel
    needs: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class TransportDescriptor(Descriptor):
    """What a plugin's hook returns."""

    capabilities: Callable[[BaseModel], TransportCapabilities]
    build: Callable[[TransportBuild], Transport]
