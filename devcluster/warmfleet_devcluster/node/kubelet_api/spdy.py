"""Frames of SPDY/3.1, as far as `kubectl port-forward` uses it. Pure: bytes in, frames out, and back.

After the SPDY protocol draft 3.1, sections 2.2 and 2.6. There is no flow control: the client ignores it.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from warmfleet_devcluster.node.errors import NodeError

SYN_STREAM: Final = 1
SYN_REPLY: Final = 2
RST_STREAM: Final = 3
PING: Final = 6
GOAWAY: Final = 7
FIN: Final = 1

_VERSION: Final = 3
_HEAD_BYTES: Final = 8
_MAX_FRAME_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 64 << 10
_WORDS: Final = (
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset", "accept-encoding",
    "accept-language", "accept-ranges", "age", "allow", "authorization", "cache-control", "connection",
    "content-base", "content-encoding", "content-language", "content-length", "content-location",
    "content-md5", "content-range", "content-type", "date", "etag", "expect", "expires", "from", "host",
    "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "last-modified",
    "location", "max-forwards", "pragma", "proxy-authenticate", "proxy-authorization", "range", "referer",
    "retry-after", "server", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via",
    "warning", "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url",
    "public", "set-cookie", "keep-alive", "origin",
)  # fmt: skip
_TAIL: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY: Final = b"".join(len(word).to_bytes(4, "big") + word.encode() for word in _WORDS) + _TAIL.encode()
"""Preset dictionary of both sides' compressors."""


class SpdyError(NodeError):
    """The peer sent malformed or oversized frames; the connection is closed."""


@dataclass(frozen=True, slots=True)
class DataFrame:
    stream: int
    content: bytes
    final: bool = False


@dataclass(frozen=True, slots=True)
class ControlFrame:
    kind: int
    stream: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of SYN_STREAM; names in lower case."""
    final: bool = False
    body: bytes = b""
    """Of the other kinds."""


class SpdyReader:
    """Turns what arrives, in any pieces, into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, chunk: bytes) -> Iterator[DataFrame | ControlFrame]:
        """Frames that are complete now. Raises SpdyError."""
        self._pending += chunk
        while len(self._pending) >= _HEAD_BYTES:
            length = int.from_bytes(self._pending[5:8], "big")
            if length > _MAX_FRAME_BYTES:
                raise SpdyError(f"a frame of {length} bytes")
            if len(self._pending) < _HEAD_BYTES + length:
                return
            head, body = bytes(self._pending[:5]), bytes(self._pending[_HEAD_BYTES : _HEAD_BYTES + length])
            del self._pending[: _HEAD_BYTES + length]
            yield self._frame(head, body)

    def _frame(self, head: bytes, body: bytes) -> DataFrame | ControlFrame:
        final = bool(head[4] & FIN)
        first = int.from_bytes(head[:4], "big")
        if not first >> 31:
            return DataFrame(first, body, final)
        kind = first & 0xFFFF
        if kind != SYN_STREAM:
            return ControlFrame(kind, _number(body[:4]) if len(body) >= 4 else 0, body=body)
        if len(body) < 10:
            raise SpdyError("a short SYN_STREAM")
        return ControlFrame(kind, _number(body[:4]), self._headers(body[10:]), final)

    def _headers(self, block: bytes) -> dict[str, str]:
        try:
            plain = self._inflate.decompress(block, _MAX_HEADER_BYTES)
        except zlib.error as error:
            raise SpdyError(f"headers cannot be read: {error}") from error
        if self._inflate.unconsumed_tail:
            raise SpdyError(f"headers of over {_MAX_HEADER_BYTES} bytes")
        texts = []
        at = 4
        for _ in range(2 * _number(plain[:4])):
            length = _number(plain[at : at + 4])
            if at + 4 + length > len(plain) or len(plain) < at + 4:
                raise SpdyError("headers that end early")
            texts.append(plain[at + 4 : at + 4 + length].decode(errors="replace"))
            at += 4 + length
        return {name.lower(): value for name, value in zip(texts[::2], texts[1::2], strict=True)}


class SpdyWriter:
    """Encodes frames; those with headers have to be sent in the order in which they were encoded."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def syn_reply(self, stream: int) -> bytes:
        """Accepts a stream that the client has opened, without headers."""
        no_headers = self._deflate.compress(bytes(4)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_REPLY, stream.to_bytes(4, "big") + no_headers)

    @staticmethod
    def data(stream: int, content: bytes, *, final: bool = False) -> bytes:
        return (
            stream.to_bytes(4, "big")
            + bytes([FIN if final else 0])
            + len(content).to_bytes(3, "big")
            + content
        )

    @staticmethod
    def control(kind: int, body: bytes) -> bytes:
        """A frame without headers, such as the answer to a PING."""
        return _control(kind, body)


def _control(kind: int, body: bytes) -> bytes:
    return (
        (0x8000 | _VERSION).to_bytes(2, "big") + kind.to_bytes(2, "big") + len(body).to_bytes(4, "big") + body
    )


def _number(four: bytes) -> int:
    return int.from_bytes(four, "big") & 0x7FFFFFFF
