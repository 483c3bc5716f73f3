"""The body of a request, bounded in size and time."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from starlette.requests import Request

from warmfleet_contracts.openai import MAX_BODY_BYTES, RequestError

BODY_SECONDS: Final = 60.0
"""How long a client may take to send its body."""
SLOW_START_SECONDS: Final = 10.0
LEAST_BYTES_PER_SECOND: Final = 4096
"""Below this, after `SLOW_START_SECONDS`, a body only occupies a connection."""
INLINE_BODY_BYTES: Final = 256 * 1024
"""A larger body is decoded in a thread, so that live streams do not wait for all of it: 10 ms at most."""

Decoded = TypeVar("Decoded")


def _uncounted(more_bytes: int) -> None:
    del more_bytes


async def read_body(
    request: Request,
    on_receive: Callable[[int], None] = _uncounted,
    *,
    limit_bytes: int = MAX_BODY_BYTES,
) -> bytes:
    """The body, bounded while it is read; `on_receive` gets the size of each piece before it is kept.

    Raises:
        RequestError: too large (413) or too slow (408); what `on_receive` raises.
    """
    too_large = RequestError(f"the body exceeds the limit of {limit_bytes} bytes", status=413)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(min(BODY_SECONDS, SLOW_START_SECONDS)) as deadline:
            started = asyncio.get_running_loop().time()
            async for chunk in request.stream():
                if len(body) + len(chunk) > limit_bytes:
                    raise too_large
                on_receive(len(chunk))
                body += chunk
                earned_seconds = SLOW_START_SECONDS + len(body) / LEAST_BYTES_PER_SECOND
                deadline.reschedule(started + min(BODY_SECONDS, earned_seconds))
    except TimeoutError as error:
        raise RequestError(
            f"the body came too slowly: {len(body)} bytes so far; the limits are {BODY_SECONDS:.0f} seconds "
            f"and {LEAST_BYTES_PER_SECOND} bytes per second",
            status=408,
        ) from error
    return bytes(body)


async def decode_body(body: bytes, decode: Callable[[bytes], Decoded]) -> Decoded:
    """`decode(body)`; raises what `decode` raises."""
    if len(body) <= INLINE_BODY_BYTES:
        return decode(body)
    return await asyncio.to_thread(decode, body)
