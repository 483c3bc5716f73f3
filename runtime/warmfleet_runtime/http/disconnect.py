"""Ends the work for a request when its client disconnects."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.types import Receive


class ConnectedClient:
    """The client of one request, as `cancel_on_disconnect` watches it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.disconnected = False
        self._task = task
        self._is_answered = False

    def disconnect(self) -> None:
        """Cancel the request's task: its client is gone, or takes nothing. No effect once it is answered."""
        if not self._is_answered and not self.disconnected:
            self.disconnected = True
            self._task.cancel()

    def answered(self) -> None:
        """The task may go on to other work: a disconnect cancels it no longer."""
        self._is_answered = True


@contextlib.asynccontextmanager
async def cancel_on_disconnect(receive: Receive) -> AsyncGenerator[ConnectedClient, None]:
    """Run the block; when the client disconnects first, cancel it and go on after it.

    async with cancel_on_disconnect(receive) as client:
        await write_answer(send)
    if client.disconnected: ...
    """
    task = asyncio.current_task()
    assert task is not None
    client = ConnectedClient(task)
    watching = asyncio.create_task(_watch(receive, client))
    try:
        yield client
    except asyncio.CancelledError:
        # A cancellation from elsewhere, such as the server's at its end, goes on.
        if not client.disconnected or task.uncancel() > 0:
            raise
    finally:
        client.answered()
        watching.cancel()


async def _watch(receive: Receive, client: ConnectedClient) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    client.disconnect()
