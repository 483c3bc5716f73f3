"""Answers of other servers, read piece by piece to a bound.

Every client asks for `IDENTITY`, and an answer that is compressed nevertheless is refused: unpacked it may be
a thousand times as long as what was received. Errors do not name the server: who asked it adds that.
"""

import re
from collections.abc import AsyncIterable, Iterator, Mapping
from typing import Final

from warmfleet_contracts.errors import WarmfleetError

IDENTITY: Final[Mapping[str, str]] = {"accept-encoding": "identity"}
"""Headers of a request whose answer is read by this module."""
_LINE_END: Final = re.compile(rb"[\r\n]")


class AnswerError(WarmfleetError):
    """An answer is longer than it may be, or compressed."""


def refuse_compressed(headers: Mapping[str, str]) -> None:
    """Raise an AnswerError if a body with these headers has an encoding."""
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise AnswerError(f"answers in {encoding[:64]!r}, which was not asked for")


async def read_content(headers: Mapping[str, str], pieces: AsyncIterable[bytes], most_bytes: int) -> bytes:
    """The whole body of an answer with these headers.

    Raises:
        AnswerError: it is longer, or compressed.
    """
    refuse_compressed(headers)
    content = Content(most_bytes)
    async for piece in pieces:
        content.add(piece)
    return content.whole()


class Content:
    """A body that is received piece by piece."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._received = bytearray()

    def add(self, piece: bytes) -> None:
        """Take the next piece.

        Raises:
            AnswerError: the body is longer than its bound.
        """
        if len(self._received) + len(piece) > self._most_bytes:
            raise AnswerError(f"answers more than {self._most_bytes:,} bytes")
        self._received += piece

    def whole(self) -> bytes:
        """All pieces."""
        return bytes(self._received)


class LineSplitter:
    r"""Lines of a body that is received piece by piece.

    They end with \n, \r or \r\n, of which the last gives an empty line more: server-sent events allow these
    three. What `str.splitlines` also takes for an end, such as U+2028, stands inside of JSON texts.
    """

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` bounds a line; a body has none."""
        self._most_bytes = most_bytes
        self._open = bytearray()

    def lines(self, piece: bytes) -> Iterator[bytes]:
        """The lines that end within the next piece.

        Raises:
            AnswerError: a line is longer than its bound.
        """
        first, *others = _LINE_END.split(piece)
        self._extend(first)
        for other in others:
            yield bytes(self._open)
            self._open.clear()
            self._extend(other)

    def rest(self) -> bytes:
        """The line that no end follows; empty if there is none."""
        return bytes(self._open)

    def _extend(self, piece: bytes) -> None:
        if len(self._open) + len(piece) > self._most_bytes:
            raise AnswerError(f"sends a line of more than {self._most_bytes:,} bytes")
        self._open += piece
