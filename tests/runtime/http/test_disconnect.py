"""A request's work ends with its client, and only with its client."""

import asyncio

import pytest

from warmfleet_runtime.http.disconnect import cancel_on_disconnect


class Connection:
    """What a server passes as `receive`: the body, then a disconnect as soon as `gone` is set."""

    def __init__(self, *, error: OSError | None = None) -> None:
        self.gone = asyncio.Event()
        self._error = error
        self._messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive(self):
        for message in self._messages:
            return message
        await self.gone.wait()
        if self._error is not None:
            raise self._error
        return {"type": "http.disconnect"}


async def test_work_runs_to_its_end_while_the_client_stays():
    async with cancel_on_disconnect(Connection().receive) as client:
        await asyncio.sleep(0.01)
        finished = True
    assert finished
    assert not client.disconnected


@pytest.mark.parametrize("error", [None, ConnectionResetError()])
async def test_a_disconnect_cancels_the_work_and_nothing_after_it(error):
    connection, steps = Connection(error=error), []
    asyncio.get_running_loop().call_later(0.01, connection.gone.set)
    async with cancel_on_disconnect(connection.receive) as client:
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("closed")
    await asyncio.sleep(0)
    assert steps == ["closed"]
    assert client.disconnected


async def test_a_disconnect_after_the_answer_cancels_nothing():
    connection = Connection()
    async with cancel_on_disconnect(connection.receive) as client:
        pass
    connection.gone.set()
    client.disconnect()
    await asyncio.sleep(0.01)
    assert not client.disconnected


async def test_a_client_that_takes_nothing_is_disconnected():
    async with cancel_on_disconnect(Connection().receive) as client:
        client.disconnect()
        client.disconnect()
        await asyncio.Event().wait()
    assert client.disconnected


async def test_a_cancellation_from_elsewhere_goes_on():
    async def work():
        async with cancel_on_disconnect(Connection().receive):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_of_the_work_is_raised():
    with pytest.raises(ValueError, match="no such model"):
        async with cancel_on_disconnect(Connection().receive):
            raise ValueError("no such model")
