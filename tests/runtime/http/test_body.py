"""Reading a body: bounded before it is there."""

import asyncio
from collections.abc import Iterable

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from warmfleet_contracts.openai import MAX_BODY_BYTES, RequestError
from warmfleet_runtime.http import body
from warmfleet_runtime.http.body import read_body

MEBIBYTE = b" " * 1024 * 1024


class Client:
    """Sends `chunks`, then nothing more; `sent` counts what was taken."""

    def __init__(
        self, chunks: Iterable[bytes], *, ends: bool = True, length: int | str | None = None
    ) -> None:
        self._chunks = iter(chunks)
        self._ends = ends
        headers = [] if length is None else [(b"content-length", str(length).encode())]
        self.sent = 0
        self.request = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)

    async def _receive(self) -> Message:
        for chunk in self._chunks:
            self.sent += 1
            return {"type": "http.request", "body": chunk, "more_body": True}
        if not self._ends:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": False}


async def test_a_body_of_exactly_the_limit_is_read():
    client = Client([MEBIBYTE] * 32, length=MAX_BODY_BYTES)

    assert len(await read_body(client.request)) == MAX_BODY_BYTES


async def test_a_declared_length_beyond_the_limit_is_refused_before_a_byte_is_read():
    client = Client([MEBIBYTE] * 33, length=MAX_BODY_BYTES + 1)

    with pytest.raises(RequestError) as caught:
        await read_body(client.request)

    assert caught.value.status == 413
    assert client.sent == 0


@pytest.mark.parametrize("length", [None, 10, "ten"])
async def test_without_an_honest_length_the_bytes_are_counted(length):
    client = Client([MEBIBYTE] * 64, length=length)

    with pytest.raises(RequestError) as caught:
        await read_body(client.request)

    assert caught.value.status == 413
    assert client.sent == 33


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.05)

    with pytest.raises(RequestError) as caught:
        await read_body(Client([b"half"], ends=False).request)

    assert caught.value.status == 408


async def test_a_client_that_leaves_while_sending_is_not_refused():
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await read_body(Request({"type": "http", "method": "POST", "headers": []}, gone))
