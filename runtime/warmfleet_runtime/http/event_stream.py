"""Response headers and keep-alive comments of a stream of server-sent events."""

from typing import Final

EVENT_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Raw headers of the response. The last one keeps nginx from collecting the events before it sends them."""
PING: Final = b": ping\n\n"
"""A comment line, which clients ignore: it keeps proxies from closing a connection as idle."""
