"""Errors that plugins and core share. Each names the part, the cause and the remedy.

    SrtError
    ├── ConfigError            the file, an option or a combination of them is wrong
    ├── PluginError            a named plugin cannot be used
    │   ├── PluginNotFound     no entry point of that kind and name is installed
    │   ├── PluginBroken       it raised at import, at build, or broke a loading rule
    │   ├── PluginIncompatible it speaks another contract version
    │   ├── PluginDuplicate    two distributions offer the same kind and name
    │   └── DeviceAbsent       it is fine, the hardware it needs is not here
    ├── Unsupported            a declared "no": refused before the step, never wrong numbers
    ├── OutOfMemory            a pool, an arena or the device is too small
    ├── LoaderError            weights or tokenizer are missing, damaged or do not fit
    ├── TransportError         a message could not be carried
    │   ├── PeerGone           the other side died or closed
    │   └── TransportTimeout   nothing arrived in time
    ├── EngineError            a running engine failed, or a child process ended
    └── RequestError           a client's request cannot be served; it ends no process

`exit_code` is what the `srt` command ends with when the error reaches it (docs/errors.md lists them).
"""


class SrtError(Exception):
    """Base of all errors raised on purpose.

    `part` names what failed ("attention:aiter"), `cause` says why in one sentence,
    `remedy` what to do about it (may be empty when nothing can be done).
    """

    exit_code = 1

    def __init__(self, part: str, cause: str, remedy: str = "") -> None:
        super().__init__(part, cause, remedy)
        self.part = part
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        text = f"{self.part}: {self.cause}"
        return f"{text}\n  remedy: {self.remedy}" if self.remedy else text


class ConfigError(SrtError):
    """A setting is unknown, has the wrong type, or contradicts another."""

    exit_code = 10


class PluginError(SrtError):
    """A named plugin cannot be used; subclasses say in which way."""

    exit_code = 20


class PluginNotFound(PluginError):
    """No installed distribution offers this kind and name."""

    exit_code = 21


class PluginBroken(PluginError):
    """The plugin raised while loading or building, or broke a loading rule."""

    exit_code = 22


class PluginIncompatible(PluginError):
    """The plugin speaks a contract version that this core does not."""

    exit_code = 23


class PluginDuplicate(PluginError):
    """Two distributions offer one (kind, name) and the file does not choose."""

    exit_code = 24


class DeviceAbsent(PluginError):
    """The plugin loads, but the device or driver it needs is not on this machine."""

    exit_code = 25


class Unsupported(SrtError):
    """A combination that a part declares it cannot do. Raised at start or at plan time."""

    exit_code = 30


class OutOfMemory(SrtError):
    """Something does not fit; the cause states both figures."""

    exit_code = 40


class LoaderError(SrtError):
    """The model source is missing, damaged, incomplete or of an unknown form."""

    exit_code = 50


class TransportError(SrtError):
    """A message could not be sent or received."""

    exit_code = 60


class PeerGone(TransportError):
    """The other end of a channel closed or died."""

    exit_code = 61


class TransportTimeout(TransportError):
    """Nothing arrived, or nothing could be sent, within the stated time."""

    exit_code = 62


class EngineError(SrtError):
    """A running engine failed or one of its processes ended."""

    exit_code = 70


class RequestError(SrtError):
    """A client's request cannot be served as it is. `part` is its field ("" for the request as a whole).

    `status` and `code` are those of the HTTP answer.
    """

    def __init__(
        self, part: str, cause: str, remedy: str = "", *, status: int = 400, code: str = "invalid_value"
    ) -> None:
        super().__init__(part, cause, remedy)
        self.status = status
        self.code = code
