"""How often a router tries to reach a worker that does not listen yet."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from warmfleet_contracts.cache.kv_events import Hello
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.event_stream import StreamTiming, WorkerStream
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.stream_follower import follow, longest_backoff_seconds
from warmfleet_testing.engine.modelled_worker import ModelledWorker

ENDPOINT = Endpoint(uid="w0", name="w0", url="http://127.0.0.1:1")


def stream(*, known: bool) -> WorkerStream:
    following, worker = WorkerStream(ENDPOINT, PrefixIndex(), StreamTiming()), ModelledWorker("w0")
    if known:
        epoch, after = following.opening(b"n" * 16)
        for message in worker.answer(epoch, after, b"n" * 16):
            following.received(message, 0.0)
        assert isinstance(following.hello, Hello)
    return following


@pytest.mark.parametrize(
    ("known", "followed_seconds", "longest"),
    [(False, 0, 0.5), (False, 119, 0.5), (False, 120, 5.0), (True, 0, 5.0)],
)
def test_a_worker_that_is_starting_is_tried_every_half_second(
    known: bool, followed_seconds: float, longest: float
) -> None:
    assert longest_backoff_seconds(stream(known=known), followed_seconds, StreamTiming()) == longest


def test_a_shorter_longest_backoff_counts_for_newcomers_too() -> None:
    assert longest_backoff_seconds(stream(known=False), 0, StreamTiming(longest_backoff_seconds=0.1)) == 0.1


async def test_a_newcomer_is_tried_at_that_rate() -> None:
    class Refusing:
        tries = 0

        async def open(self, *_: object) -> AsyncGenerator[bytes, None]:
            self.tries += 1
            raise StreamUnavailableError("refused", is_down=True)
            yield b""

    source = Refusing()
    timing = StreamTiming(first_backoff_seconds=0.001, newcomer_backoff_seconds=0.01)
    clock = asyncio.get_running_loop().time
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await follow(stream(known=False), source, timing=timing, clock=clock)

    assert source.tries >= 20  # 9 if the backoff had gone on to double
