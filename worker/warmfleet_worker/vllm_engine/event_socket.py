"""Receives vLLM's cache events over its ZMQ sockets, which are files in a folder.

ZMQ is imported in functions: the module itself is imported, and checked, where it is not installed.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from warmfleet_worker.vllm_engine.resident import EventsLostError

REPLAY_SECONDS: Final = 5.0
MAX_QUEUED_BATCHES: Final = 100_000
"""vLLM's own bound on both sides; beyond it batches are lost, which shows as a gap."""
_LIVE_PARTS: Final = 3  # topic, number, payload
_NUMBER_BYTES: Final = 8


class EventSocket:
    """The batches of one vLLM engine, in order and without gaps. Make it before the engine starts.

    with socket_folder() as folder, EventSocket(folder) as events:
        ...  # start vLLM with `events.endpoint` and `events.replay_endpoint`
        async for payload in events.batches():
            ...
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: only this user can enter it."""
        import zmq.asyncio

        self.endpoint = f"ipc://{folder / 'events'}"
        self.replay_endpoint = f"ipc://{folder / 'replay'}"
        self._context = zmq.asyncio.Context()
        self._next = 0
        self._after_gap: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    async def batches(self) -> AsyncIterator[bytes]:
        """Payloads of all batches from the next one on.

        Raises:
            EventsLostError: some are gone, or have another form. A new iteration goes on after them.
        """
        import zmq

        socket = self._context.socket(zmq.SUB)
        socket.set_hwm(MAX_QUEUED_BATCHES)
        socket.subscribe(b"")
        socket.connect(self.endpoint)
        try:
            while True:
                parts, self._after_gap = self._after_gap or await socket.recv_multipart(), []
                if len(parts) != _LIVE_PARTS or len(parts[1]) != _NUMBER_BYTES:
                    raise EventsLostError("vLLM sent cache events of another form")
                number = int.from_bytes(parts[1], "big")
                if number < self._next:
                    continue  # replayed already
                if number > self._next:
                    self._after_gap = parts  # if what is before it is lost, the next iteration begins with it
                    missed = await self._missed(number)
                    self._after_gap = []
                    for payload in missed:
                        self._next += 1
                        yield payload
                self._next = number + 1
                yield parts[2]
        finally:
            socket.close(linger=0)

    async def _missed(self, until: int) -> list[bytes]:
        """Payloads from the next one to the one before `until`, from vLLM's buffer."""
        import zmq

        first, self._next = self._next, until
        socket = self._context.socket(zmq.DEALER)
        socket.connect(self.replay_endpoint)
        found: dict[int, bytes] = {}
        try:
            async with asyncio.timeout(REPLAY_SECONDS):
                await socket.send_multipart([b"", first.to_bytes(_NUMBER_BYTES, "big")])
                while True:
                    *_, number, payload = await socket.recv_multipart()
                    if not payload:
                        break
                    found[int.from_bytes(number, "big")] = payload
        except TimeoutError:
            pass
        finally:
            socket.close(linger=0)
        missing = [number for number in range(first, until) if number not in found]
        if missing:
            raise EventsLostError(f"{len(missing)} batches of vLLM's cache events are lost")
        self._next = first
        return [found[number] for number in range(first, until)]
