"""Facts about the device and the run that descriptors may decide by. Plain data, no torch, no probing."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DeviceFacts:
    """What a platform says of one kind of device; also made from a table when nothing is probed.

    `dtypes` are torch names ("bfloat16"); `fp8` is the flavour ("e4m3fn", "e4m3fnuz") or None;
    `memory_bytes` is the total of one device; `async_launch` says that a launch returns before the
    work is done (depth may exceed 0); `graphs` that work can be captured and replayed; `host_memory` that its memory is
    the host's.
    """

    platform: str
    name: str
    architecture: str
    count: int = 1
    memory_bytes: int = 0
    dtypes: frozenset[str] = frozenset({"float32"})
    fp8: str | None = None
    async_launch: bool = False
    graphs: bool = False
    pinned: bool = False
    peer_access: bool = False
    extra: dict[str, str] = field(default_factory=dict)
    host_memory: bool = False


@dataclass(frozen=True)
class Limits:
    """The largest step and sequence of this run: buffers are sized by it once.

    `max_rows` row slots beside the padding slot 0; `max_tokens` query tokens in one step;
    `max_context` tokens of one sequence; `max_pages` page-table width of one row;
    `depth` steps in flight.
    """

    max_rows: int
    max_tokens: int
    max_context: int
    page_size: int
    depth: int = 0

    @property
    def max_pages(self) -> int:
        """Pages of one row at the longest context."""
        return -(-self.max_context // self.page_size)


@dataclass(frozen=True)
class Shard:
    """This process's share of a tensor-parallel group."""

    rank: int = 0
    world: int = 1
