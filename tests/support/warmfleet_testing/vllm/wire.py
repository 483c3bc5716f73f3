"""A stand-in for ZMQ with vLLM's publisher of cache events on its other side: pyzmq comes with vLLM only."""

import asyncio
import sys
from types import ModuleType

import pytest

_NUMBER_BYTES = 8
END = (-1).to_bytes(_NUMBER_BYTES, "big", signed=True)
"""What the publisher ends a replay with, in the place of a number."""


class Wire:
    """Batches by number: what is published is live, and kept for replays until `forget`."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.opened: list[_Socket] = []
        self.destroyed = 0
        self.answers_replays = True
        self._published = 0
        self._live: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def publish(self, payload: bytes, *, arrives: bool = True) -> None:
        """Send the next batch; it may be lost on its way."""
        number = self._published
        self._published += 1
        self.kept[number] = payload
        if arrives:
            self.send(b"", number.to_bytes(_NUMBER_BYTES, "big"), payload)

    def send(self, *parts: bytes) -> None:
        """Send a message of any form."""
        self._live.put_nowait(list(parts))

    def forget(self, *numbers: int) -> None:
        """The publisher keeps those no longer."""
        for number in numbers:
            del self.kept[number]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it into `sys.modules` as `zmq` until the test ends."""
        package, asynchronous = ModuleType("zmq"), ModuleType("zmq.asyncio")
        vars(asynchronous)["Context"] = lambda: _Context(self)
        vars(package).update(SUB="SUB", DEALER="DEALER", asyncio=asynchronous)
        monkeypatch.setitem(sys.modules, "zmq", package)
        monkeypatch.setitem(sys.modules, "zmq.asyncio", asynchronous)


class _Context:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def socket(self, kind: str) -> "_Socket":
        made = _Socket(self._wire, self._wire._live if kind == "SUB" else asyncio.Queue())
        self._wire.opened.append(made)
        return made

    def destroy(self, linger: int) -> None:
        assert linger == 0
        self._wire.destroyed += 1


class _Socket:
    def __init__(self, wire: Wire, incoming: "asyncio.Queue[list[bytes]]") -> None:
        self.endpoint = ""
        self.is_closed = False
        self.hwm = 0
        self._wire = wire
        self._incoming = incoming

    def set_hwm(self, value: int) -> None:
        self.hwm = value

    def subscribe(self, topic: bytes) -> None:
        assert topic == b""

    def connect(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def close(self, linger: int) -> None:
        assert linger == 0
        self.is_closed = True

    async def recv_multipart(self) -> list[bytes]:
        assert self.endpoint
        assert not self.is_closed
        return await self._incoming.get()

    async def send_multipart(self, parts: list[bytes]) -> None:
        """A request for a replay, answered as vLLM's publisher does."""
        delimiter, first = parts
        assert (delimiter, len(first)) == (b"", _NUMBER_BYTES)
        if not self._wire.answers_replays:
            return
        for number, payload in sorted(self._wire.kept.items()):
            if number >= int.from_bytes(first, "big"):
                self._answer(number.to_bytes(_NUMBER_BYTES, "big"), payload)
        self._answer(END, b"")

    def _answer(self, number: bytes, payload: bytes) -> None:
        self._incoming.put_nowait([b"", b"", number, payload])
