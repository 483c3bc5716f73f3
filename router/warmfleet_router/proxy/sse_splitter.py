"""Splits a worker's stream at the blank lines between its server-sent events."""

from typing import Final

MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this is passed on in pieces."""
_DONE: Final = b"data: [DONE]\n\n"
_ERROR: Final = b'data: {"error":'
_LATER_ERROR: Final = b"\n\n" + _ERROR
_NOT_PLAIN: Final = (b":", _ERROR, _DONE)
_SERVER_ERROR: Final = b'"type":"server_error"'
_NOT_READY: Final = b'"type":"server_error","param":null,"code":"not_ready"'


class SseSplitter:
    """Holds back the part of an event that has not ended yet; bounded by `MAX_EVENT_BYTES`."""

    def __init__(self) -> None:
        self.kept: Final = bytearray()
        """The part that is held back."""

    def feed(self, chunk: bytes) -> bytes:
        """Every whole event so far; empty while there is none. The cost is `chunk`'s, however it is cut."""
        kept = self.kept
        if not kept and chunk.endswith(b"\n\n"):
            return chunk
        # A boundary may lie across the seam.
        start = max(len(kept) - 1, 0)
        kept += chunk
        end = kept.rfind(b"\n\n", start)
        if end >= 0:
            end += 2
        elif len(kept) > MAX_EVENT_BYTES:
            end = len(kept)
        else:
            return b""
        ready = bytes(kept[:end])
        del kept[:end]
        return ready

    def rest(self) -> bytes:
        """What the stream ended with, after its last whole event."""
        return bytes(self.kept)


def is_plain_event(data: bytes, start: int = 0, end: int | None = None) -> bool:
    """Whether `data[start:end]` is one whole event, and no comment, error object, or end of the stream.

    Nearly every piece of a stream is: this is the short way around the other questions.
    """
    if end is None:
        end = len(data)
    return data.find(b"\n\n", start, end) == end - 2 >= start and not data.startswith(_NOT_PLAIN, start)


def without_leading_comments(data: bytes) -> bytes:
    """`data`, whole events, from its first event on; empty if it has only comments such as `: ping`."""
    start = 0
    while data.startswith(b":", start):
        end = data.find(b"\n\n", start)
        if end < 0 or not all(line.startswith(b":") for line in data[start:end].split(b"\n")):
            break
        start = end + 2
    return data[start:]


def has_server_error(data: bytes) -> bool:
    """Whether `data`, whole events, has an error object of the server, as `RequestError.event` writes it.

    No generated text looks like that: in JSON its quotes are escaped.
    """
    start = 0 if data.startswith(_ERROR) else data.find(_LATER_ERROR)
    return start >= 0 and data.find(_SERVER_ERROR, start) >= 0


def is_refused_stream(data: bytes) -> bool:
    """Whether `data`, the first whole events of a stream, begins with a 503 of a worker that had sent a ping.

    Such a worker's status is 200 already; what it computed, if anything, is lost.
    """
    return data.startswith(_ERROR) and data.find(_NOT_READY, 0, data.find(b"\n\n")) >= 0


def ends_stream(data: bytes) -> bool:
    """Whether `data`, whole events, ends with the one that holds no token and ends the stream."""
    return data.endswith(_DONE)


def count_events(data: bytes) -> int:
    """Whole events in `data`; comment lines such as `: ping` are none."""
    return data.count(b"\n\n") - data.count(b"\n\n:") - data.startswith(b":")
