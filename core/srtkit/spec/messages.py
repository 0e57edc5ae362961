"""What the channels carry between the frontend (HTTP, text) and the scheduler. Typed, versioned, no torch.

Token ids, columns and log-probabilities are little-endian byte strings (int32, float32), never lists of
numbers. The deltas of a step are one message of columns. Step plans travel as their own bytes.
"""

from typing import Any

import msgspec
import numpy as np

from srtkit.spec.errors import EngineError, TransportError
from srtkit.spec.step_plan import Ints

SCHEMA = 1


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to choose tokens. `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 mean off.

    `seed` is always set by the frontend; `logprobs` is the number of alternatives wanted, -1 for none;
    `stop_ids` end the sequence (the model's EOS ids included unless ignored) and are not shown.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    logprobs: int = -1


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new sequence. `rid` is unique; `ids` int32 bytes; `namespace` salts the cache."""

    rid: int
    ids: bytes
    sampling: Sampling
    namespace: bytes = b""
    priority: int = 0


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Stop a sequence. `reason` is what its end will say ("abort", or "stop" for a stop string)."""

    rid: int
    reason: str = "abort"


class Control(msgspec.Struct, frozen=True, tag=True):
    """An operation for the engine; answered by `Reply` with the same id."""

    id: int
    op: str
    args: dict[str, Any] = {}


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A sequence got its row slot; later columns name it by slot."""

    rid: int
    slot: int
    cached_tokens: int = 0


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A sequence ended. `reason`: stop, length, abort or error (then `detail` says why)."""

    rid: int
    slot: int
    reason: str
    detail: str = ""


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one sampled token: float32 bytes; first the token itself, then the top ones."""

    slot: int
    ids: bytes
    values: bytes


class Deltas(msgspec.Struct, frozen=True, tag=True):
    """What a step brought: int32 byte columns slots, counts, and the ids row after row.

    Order of meaning: `started`, then the columns, then `finished`.
    """

    step: int
    slots: bytes = b""
    counts: bytes = b""
    ids: bytes = b""
    started: tuple[Started, ...] = ()
    finished: tuple[Finished, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Control`."""

    id: int
    value: Any = None
    error: str = ""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A process is up. `wiring` is its wiring-plan hash, `info` its figures."""

    process: str
    wiring: str
    info: dict[str, Any] = {}


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A process cannot go on: the error's part, cause, remedy and exit code."""

    process: str
    part: str
    cause: str
    remedy: str
    exit_code: int

    def error(self) -> EngineError:
        """The error as it was there, for raising here."""
        error = EngineError(self.part, self.cause, self.remedy)
        error.exit_code = self.exit_code
        return error


class Counters(msgspec.Struct):
    """Totals since start. Prompt tokens count what clients sent, cached those not computed again."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    retracted: int = 0
    steps: int = 0


class Stats(Counters, tag=True):
    """Figures of the scheduler, sent while busy and once when it falls idle. `tiers` as in `CacheStats`."""

    running: int = 0
    waiting: int = 0
    pages_used: int = 0
    pages_total: int = 0
    eager_steps: int = 0
    cached_pages: int = 0
    tiers: dict[str, dict[str, int]] = {}


Message = Submit | Abort | Control | Deltas | Reply | Ready | Failed | Stats

_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: value.tolist())  # arrays and numbers of numpy
_envelope = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])  # opened first: another schema has other messages
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """One frame."""
    return _encoder.encode((SCHEMA, message))


def decode(frame: bytes | memoryview) -> Message:
    """The message of a frame; `TransportError` when it is damaged or of another schema."""
    try:
        schema, body = _envelope.decode(frame)
        if schema == SCHEMA:
            return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TransportError("messages", f"a frame is not a message: {error}") from error
    raise TransportError("messages", f"schema {schema}, this core speaks {SCHEMA}", "use equal versions")


def ints(data: bytes) -> Ints:
    """View bytes as an int32 column."""
    return np.frombuffer(data, "<i4")
