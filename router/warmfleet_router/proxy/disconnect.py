"""Whether a client is still there, watched while its request is worked on."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.types import Receive


class Client:
    """One client; `leave` ends the work for it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.left = False
        self._task: asyncio.Task[object] | None = task

    def leave(self) -> None:
        """It is gone, or as good as gone. Idempotent; nothing happens once the work is done."""
        if self._task is not None and not self.left:
            self.left = True
            self._task.cancel()

    def done(self) -> None:
        """The work for it has ended."""
        self._task = None


@contextlib.asynccontextmanager
async def unless_left(receive: Receive) -> AsyncGenerator[Client, None]:
    """Run the block until its end, or until the client leaves: then it is cancelled, and nothing is raised.

    Cancelling closes the upstream connection, which is what cancels the worker's sequence.
    """
    task = asyncio.current_task()
    assert task is not None
    client = Client(task)
    watching = asyncio.create_task(_left(receive, client))
    try:
        yield client
    except asyncio.CancelledError:
        # Whoever else cancels, such as the server at its end, is to be heard.
        if not client.left or task.uncancel() > 0:
            raise
    finally:
        client.done()
        watching.cancel()


async def _left(receive: Receive, client: Client) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
    client.leave()
