"""One JSON document as a server-sent event.

The format ends a line at CR, LF or both, and at nothing else (WHATWG HTML, section 9.2.6). Many clients cut
with Python's `str.splitlines` all the same, `httpx.Response.iter_lines` among them, and would break a text at
U+0085, U+2028 or U+2029, which JSON lets stand in a string. Escaped, they mean the same and break nothing.
"""

from typing import Final

_ESCAPES: Final = tuple(
    (separator.encode(), f"\\u{ord(separator):04x}".encode()) for separator in "\u0085\u2028\u2029"
)


def server_sent_event(document: bytes) -> bytes:
    """`document`, JSON in UTF-8, as the one `data` line of an event."""
    return b"data: " + one_line(document) + b"\n\n"


def one_line(document: bytes) -> bytes:
    """JSON in UTF-8, or a part of it between two tokens, as it stands in a `data` line.

    Bytes can be replaced without reading the document: JSON has these separators only inside strings, and
    line ends only outside of them.
    """
    line = document.replace(b"\r", b" ").replace(b"\n", b" ")
    if not line.isascii():
        for separator, escape in _ESCAPES:
            line = line.replace(separator, escape)
    return line
