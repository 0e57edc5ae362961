"""Server-sent events: bytes in, payloads out. Knows neither HTTP nor what a payload means."""

from __future__ import annotations


class EventDecoder:
    """Collects the `data` of one stream. Lines end with LF or CR LF; other fields and comments are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes; what is left waits for the next chunk."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events
