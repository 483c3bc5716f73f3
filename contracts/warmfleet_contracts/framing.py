"""Frames on a byte stream: the body's length as a little-endian u32, then the body.

The event stream between worker and router, and the socket between a worker's server and its engine, carry
their messages in such frames. Here and not in runtime, because the event stream's format is a contract.
"""

from collections.abc import Iterator
from typing import Final

from warmfleet_contracts.errors import ContractError

_LENGTH_BYTES: Final = 4


def frame(body: bytes, *, max_bytes: int) -> bytes:
    """`body` as one frame.

    Raises:
        ContractError: it exceeds `max_bytes`.
    """
    _check_length(len(body), max_bytes)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameReader:
    """Cuts a byte stream into the bodies of its frames.

    reader = FrameReader(max_bytes=MAX_FRAME_BYTES)
    while chunk := await stream.read():
        for body in reader.feed(chunk): ...
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that `data` completes, each before the next one is looked at.

        Raises:
            ContractError: a frame announces more than `max_bytes`; nothing of it is buffered.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) >= start + _LENGTH_BYTES:
                begin = start + _LENGTH_BYTES
                end = begin + int.from_bytes(self._buffer[start:begin], "little")
                _check_length(end - begin, self._max_bytes)
                if len(self._buffer) < end:
                    return
                body = bytes(self._buffer[begin:end])
                start = end
                yield body
        finally:
            del self._buffer[:start]


def _check_length(length_bytes: int, max_bytes: int) -> None:
    if length_bytes > max_bytes:
        raise ContractError(f"a frame of {length_bytes} bytes exceeds the limit of {max_bytes}")
