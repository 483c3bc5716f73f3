"""Requests to workers to compute prefixes; what is open at once has a bound over all workers."""

import asyncio

import msgspec

from warmfleet_contracts.cache.prewarm import PREWARM_PATH, PrewarmAnswer
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import Upstream, UpstreamError

MOST_BODY_BYTES = 16 * 1024 * 1024
"""Of the token ids that one worker is sent."""
MOST_OPEN_BYTES = 64 * 1024 * 1024
"""Of all that is sent and not answered yet: of many workers at once the last ones get fewer prefixes."""
_MOST_ANSWER_BYTES = 64 * 1024


class WorkerPrewarms:
    """Sends requests, and counts the bytes of those that are not answered.

    body = encode_prewarm(PrewarmRequest(prefixes=prefixes))  # at most `left_bytes` of prefixes
    answer = await prewarms.ask(worker, body, within_seconds=5)
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._open_bytes = 0

    @property
    def left_bytes(self) -> int:
        """What the next request may have."""
        return min(MOST_BODY_BYTES, max(MOST_OPEN_BYTES - self._open_bytes, 0))

    async def ask(self, worker: WorkerStatus, body: bytes, within_seconds: float) -> PrewarmAnswer:
        """What came of it; its cancellation gives up what is not computed.

        Raises:
            UpstreamError: no answer in time, or one that cannot be read.
        """
        self._open_bytes += len(body)
        try:
            async with (
                asyncio.timeout(within_seconds),
                self._upstream.request(worker.endpoint, "POST", PREWARM_PATH, body=body) as response,
            ):
                content = await response.body(_MOST_ANSWER_BYTES)
        except TimeoutError as error:
            raise UpstreamError("no answer in time") from error
        finally:
            self._open_bytes -= len(body)
        if response.status != 200:
            raise UpstreamError(f"the worker answered {response.status}")
        try:
            return msgspec.json.decode(content, type=PrewarmAnswer)
        except UNDECODABLE as error:
            raise UpstreamError(f"the answer cannot be read: {error}") from error
