"""The body of a request, bounded in size and time."""

import asyncio
from typing import Final

from starlette.requests import Request

from warmfleet_contracts.openai import MAX_BODY_BYTES, RequestError

BODY_SECONDS: Final = 60.0
"""How long a client may take to send its body."""


async def read_body(request: Request) -> bytes:
    """The body, bounded while it is read.

    Raises:
        RequestError: too large (413) or too slow (408).
    """
    too_large = RequestError(f"the body exceeds the limit of {MAX_BODY_BYTES} bytes", status=413)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                if len(body) + len(chunk) > MAX_BODY_BYTES:
                    raise too_large
                body += chunk
    except TimeoutError as error:
        raise RequestError(
            f"the body did not arrive within {BODY_SECONDS:.0f} seconds", status=408
        ) from error
    return bytes(body)
