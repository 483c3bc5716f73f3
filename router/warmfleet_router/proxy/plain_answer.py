"""Plain answers, which are read whole before anything of them is sent."""

from typing import Final

from warmfleet_router.admission.in_flight_limits import BufferedAnswer
from warmfleet_router.workers.upstream import UpstreamResponse, UpstreamTooLargeError

MAX_PLAIN_BODY_BYTES: Final = 64 * 1024 * 1024


async def read_plain_answer(response: UpstreamResponse, answer: BufferedAnswer) -> list[bytes]:
    """The whole body, in the pieces that arrived: joined, they would take up their memory twice.

    Raises:
        UpstreamTooLargeError: it exceeds `MAX_PLAIN_BODY_BYTES`.
        UpstreamBrokenError: the worker died or fell silent.
        RequestError: 429, the router has no memory for it.
    """
    pieces: list[bytes] = []
    async for chunk in response.chunks():
        answer.receive(len(chunk))
        if answer.size_bytes > MAX_PLAIN_BODY_BYTES:
            raise UpstreamTooLargeError(f"the answer exceeds {MAX_PLAIN_BODY_BYTES} bytes")
        pieces.append(chunk)
    return pieces
