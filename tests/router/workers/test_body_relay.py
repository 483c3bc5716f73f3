"""A body goes from a connection's callback to its receiver: whole, in order, and as far as that takes it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import pytest

from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.workers.liveness import LivenessSettings, LivenessWatch, ResponseKind
from warmfleet_router.workers.upstream import Upstream, UpstreamBrokenError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Worker:
    """Answers every request with a head; the rest is up to the test."""

    def __init__(self) -> None:
        self.connections: list[asyncio.StreamWriter] = []
        self.requests = 0
        self.asked = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                writer.write(HEAD)
                self.asked.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class Receiver:
    """Takes what comes, or only `room` pieces of it until `resume` is called."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.pieces: list[bytes] = []
        self.room = room
        self.resume: Callable[[], None] = lambda: None
        self.came = asyncio.Event()

    def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
        self.pieces.append(data)
        self.resume = resume
        self.came.set()
        return len(self.pieces) < self.room

    def receive_chunk(self, chunk: bytes, start: int, resume: Callable[[], None]) -> bool:
        return self.receive(chunk[start:-2], resume)

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class Relaying:
    """A worker, a router's client, and a body that is on its way."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.liveness = LivenessWatch(LivenessSettings(answer_seconds=1.0))
        self.upstream = Upstream(liveness=self.liveness)
        self.url = ""

    async def relay(self, receiver: Receiver) -> None:
        endpoint = Endpoint(uid="w", name="w", url=self.url)
        async with self.upstream.request(endpoint, "GET", "/", kind=ResponseKind.STREAM) as response:
            await response.relay(receiver)

    async def begin(self, receiver: Receiver) -> asyncio.Task[None]:
        """A relay under way, of which the receiver has the first piece."""
        task = asyncio.create_task(self.relay(receiver))
        await asyncio.wait_for(self.worker.asked.wait(), 10)
        self.worker.asked.clear()
        self.send(chunk(b"first "))
        await asyncio.wait_for(receiver.came.wait(), 10)
        return task

    async def closed(self) -> None:
        """The router has closed the connection, or reset it."""
        with suppress(ConnectionError):
            await asyncio.wait_for(self.worker.connections[-1].wait_closed(), 10)

    def send(self, data: bytes) -> None:
        self.worker.connections[-1].write(data)


@pytest.fixture
async def relaying() -> AsyncGenerator[Relaying, None]:
    made = Relaying()
    server = await asyncio.start_server(made.worker.answer, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await made.upstream.start()
    yield made
    await made.upstream.stop()
    server.close()


async def test_a_body_arrives_whole_and_its_connection_carries_the_next_one(relaying: Relaying) -> None:
    for _ in range(2):
        receiver = Receiver()
        task = await relaying.begin(receiver)
        relaying.send(chunk(b"second ") + chunk(b"third"))
        relaying.send(END)
        await asyncio.wait_for(task, 10)

        assert receiver.body == b"first second third"

    assert relaying.worker.requests == 2
    assert len(relaying.worker.connections) == 1


async def test_a_receiver_that_takes_nothing_gets_nothing_and_then_the_rest(relaying: Relaying) -> None:
    # Given a receiver that takes one piece
    receiver = Receiver(room=1)
    task = await relaying.begin(receiver)

    # When the worker sends more than what is read ahead, and the end
    piece, pieces = b"x" * 65_536, 100
    writer = relaying.worker.connections[-1]
    for _ in range(pieces):
        writer.write(chunk(piece))
    writer.write(END)
    for _ in range(100):
        await asyncio.sleep(0)

    # Then it waits with the worker, and comes when the receiver takes it
    assert receiver.body == b"first "
    receiver.room = 1_000_000
    receiver.resume()
    await asyncio.wait_for(task, 10)
    assert receiver.body == b"first " + pieces * piece


async def test_an_end_that_came_while_nothing_was_taken_ends_the_body_after_the_rest(
    relaying: Relaying,
) -> None:
    receiver = Receiver(room=1)
    task = await relaying.begin(receiver)
    relaying.send(chunk(b"last") + END)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()

    receiver.room = 2
    receiver.resume()
    assert receiver.body == b"first last"
    receiver.resume()

    await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("is_whole", [False, True], ids=["in an event", "between two"])
async def test_a_worker_that_dies_breaks_the_body_after_what_came(relaying: Relaying, is_whole: bool) -> None:
    receiver = Receiver()
    task = await relaying.begin(receiver)
    relaying.send(chunk(b"second") if is_whole else chunk(b"second")[:-4])
    relaying.worker.connections[-1].close()

    with pytest.raises(UpstreamBrokenError, match="closed"):
        await asyncio.wait_for(task, 10)

    assert b"first second".startswith(receiver.body)


async def test_a_worker_that_falls_silent_breaks_the_body_but_no_slow_receiver_does(
    relaying: Relaying,
) -> None:
    receiver = Receiver(room=1)
    task = await relaying.begin(receiver)
    for _ in range(20):
        relaying.liveness.sweep(lambda _: 0.0, lambda _: None)
    assert not task.done()

    receiver.room = 2
    receiver.resume()
    for _ in range(20):
        relaying.liveness.sweep(lambda _: 0.0, lambda _: None)

    with pytest.raises(UpstreamBrokenError, match="silent"):
        await asyncio.wait_for(task, 10)


async def test_a_fault_of_the_receiver_ends_the_request_and_its_connection(relaying: Relaying) -> None:
    class Faulty(Receiver):
        def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
            super().receive(data, resume)
            raise ValueError("a fault")

    task = await relaying.begin(Faulty())

    with pytest.raises(ValueError, match="a fault"):
        await asyncio.wait_for(task, 10)
    await relaying.closed()


async def test_leaving_in_the_middle_closes_the_connection_and_passes_nothing_on(relaying: Relaying) -> None:
    receiver = Receiver()
    task = await relaying.begin(receiver)

    task.cancel()
    relaying.send(chunk(b"second"))

    with pytest.raises(asyncio.CancelledError):
        await task
    await relaying.closed()
    assert receiver.body == b"first "
