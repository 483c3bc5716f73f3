"""Clients that take none of their plain answers until a test lets them."""

import asyncio
from typing import Any

import pytest

from warmfleet_router.proxy.client_response import ClientResponse


class SlowReaders:
    """All clients of this process's routers, from now on until the end of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = asyncio.Event()
        """Set by a test: they take their answers."""
        self.waiting = 0
        """Answers that are whole and not taken."""
        send_whole = ClientResponse.send_whole

        async def send_when_read(client: ClientResponse, *answer: Any) -> None:
            self.waiting += 1
            await self.read.wait()
            await send_whole(client, *answer)

        monkeypatch.setattr(ClientResponse, "send_whole", send_when_read)
