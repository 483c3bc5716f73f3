"""Chunks that arrive one by one keep their framing; all else is parsed. The content is the same."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from warmfleet_router.workers.body_relay import LARGEST_CHUNK_BYTES, BodyRelay
from warmfleet_router.workers.liveness import LivenessSettings, LivenessWatch, ResponseKind
from warmfleet_testing.wires.worker_wire import Wire, begun_answer, framed

END = b"0\r\n\r\n"


class Relayed:
    """A receiver of a body, and the relay that fills it."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.body = b""
        self.chunks: list[bytes] = []
        """What came with its framing."""
        self.takes_more = True
        self.resume: Callable[[], None] = lambda: None

    async def begin(self) -> None:
        self.relay = BodyRelay(await begun_answer(self.wire), self)
        watch = LivenessWatch(LivenessSettings()).body("w", ResponseKind.STREAM, lambda: None)
        with watch as read:
            self.ended = asyncio.create_task(self.relay.run(read))
            await asyncio.sleep(0)

    def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
        self.body += data
        self.resume = resume
        return self.takes_more

    def receive_chunk(self, chunk: bytes, start: int, resume: Callable[[], None]) -> bool:
        self.chunks.append(chunk)
        return self.receive(chunk[start:-2], resume)

    def arrive(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.wire.arrives(piece)


@pytest.fixture
async def relayed() -> Any:
    made = Relayed()
    await made.begin()
    yield made
    made.relay.close()
    made.ended.cancel()


def cuts(data: bytes) -> Generator[tuple[bytes, bytes], None, None]:
    for place in range(1, len(data)):
        yield data[:place], data[place:]


async def test_a_chunk_keeps_its_framing_once_another_one_has_shown_where_the_parser_is(
    relayed: Relayed,
) -> None:
    relayed.arrive(*(framed(b"event %d" % number) for number in range(4)))

    assert relayed.chunks == [framed(b"event %d" % number) for number in range(1, 4)]
    assert relayed.body == b"event 0event 1event 2event 3"


@pytest.mark.parametrize(
    "odd",
    [
        framed(b"a", b"b"),
        b"0001\r\na\r\n",
        b"1;extension\r\na\r\n",
        framed(b"x" * (LARGEST_CHUNK_BYTES + 1)),
    ],
)
async def test_what_is_framed_otherwise_is_parsed(relayed: Relayed, odd: bytes) -> None:
    relayed.arrive(framed(b"first"), odd)
    assert relayed.chunks == []

    relayed.arrive(framed(b"next"), framed(b"last"))

    assert relayed.chunks[-1] == framed(b"last")


async def test_a_chunk_that_is_cut_anywhere_is_whole(relayed: Relayed) -> None:
    expected = b""
    for pieces in cuts(framed(b"an event")):
        relayed.arrive(framed(b"before"), *pieces, framed(b"after"))
        expected += b"before" + b"an event" + b"after"
    relayed.arrive(END)

    assert relayed.body == expected
    await asyncio.wait_for(relayed.ended, 10)


async def test_content_that_looks_like_a_chunk_is_content(relayed: Relayed) -> None:
    content = framed(b"a", b"b", b"c")
    relayed.arrive(b"%x\r\n" % len(content), framed(b"a"), framed(b"b"), framed(b"c"), b"\r\n", END)

    assert relayed.chunks == []
    assert relayed.body == content
    await asyncio.wait_for(relayed.ended, 10)


async def test_a_line_of_a_chunk_that_came_before_its_content_is_no_place_between_two(
    relayed: Relayed,
) -> None:
    content = framed(b"inner")
    relayed.arrive(framed(b"first"), b"%x\r\n" % len(content), content, b"\r\n", framed(b"last"), END)

    assert relayed.body == b"first" + content + b"last"
    assert relayed.chunks == []
    await asyncio.wait_for(relayed.ended, 10)


async def test_a_receiver_that_takes_no_more_gets_the_rest_parsed_and_is_not_read_for(
    relayed: Relayed,
) -> None:
    relayed.arrive(framed(b"0 "), framed(b"1 "))
    relayed.takes_more = False
    relayed.arrive(framed(b"2 "), framed(b"3 "))
    relayed.arrive(framed(b"x" * 4000), *(framed(b"x" * 4000) for _ in range(40)))
    assert relayed.body == b"0 1 2 "
    assert not relayed.wire.is_reading

    relayed.takes_more = True
    relayed.resume()
    relayed.arrive(framed(b" 4"), framed(b" 5"), END)

    assert relayed.wire.is_reading
    assert relayed.body == b"0 1 2 3 " + b"x" * 4000 * 41 + b" 4 5"
    assert relayed.chunks[-1] == framed(b" 5")
    await asyncio.wait_for(relayed.ended, 10)


async def test_a_fault_of_the_receiver_ends_the_body(relayed: Relayed) -> None:
    relayed.arrive(framed(b"0"))

    def faulty(*_: object) -> bool:
        raise ValueError("a fault")

    relayed.receive_chunk = faulty  # type: ignore[method-assign]
    relayed.arrive(framed(b"1"), framed(b"2"))

    with pytest.raises(ValueError, match="a fault"):
        await relayed.ended
    assert relayed.body == b"0"


async def test_a_connection_that_breaks_after_a_chunk_breaks_the_body(relayed: Relayed) -> None:
    relayed.arrive(framed(b"0"), framed(b"1"))
    relayed.relay.connection_lost(ConnectionResetError())

    with pytest.raises(Exception, match=r".*") as broken:
        await relayed.ended
    assert isinstance(broken.value, OSError) or "payload" in type(broken.value).__name__.lower()
