"""The event stream of a stub worker: a hello, a snapshot, then every frame that is published."""

import asyncio
from collections.abc import Callable

from aiohttp import web

from warmfleet_contracts.cache.kv_events import Frame, Hello, encode_message


class StubEvents:
    """Sends frames to every router that follows."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Queue[Frame]] = set()

    def publish(self, frame: Frame) -> None:
        """Send a frame to all."""
        for queue in self._followers:
            queue.put_nowait(frame)

    async def follow(
        self,
        request: web.Request,
        hello: Hello,
        snapshot: Callable[[], Frame],
        version: int,
        *,
        is_held: Callable[[], bool],
    ) -> web.StreamResponse:
        """Answer a router until it leaves; nothing follows the hello while `is_held`."""
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Frame] = asyncio.Queue()
        self._followers.add(queue)
        try:
            first = snapshot()
            await response.write(encode_message(hello, version))
            while is_held():  # noqa: ASYNC110 - tests set it from another thread
                await asyncio.sleep(0.01)
            await response.write(encode_message(first, version))
            while True:
                await response.write(encode_message(await queue.get(), version))
        except ConnectionError:
            return response
        finally:
            self._followers.discard(queue)
