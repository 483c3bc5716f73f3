"""From a worker's bytes to those that its client gets: what an event costs, and what is counted."""

import asyncio
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import pytest

from warmfleet_router.admission.dispatch import RequestUsage
from warmfleet_router.economics.model_counts import LatencyCounts
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.event_relay import EventRelay
from warmfleet_router.proxy.sse_splitter import SseSplitter
from warmfleet_router.proxy.token_gaps import TokenGaps
from warmfleet_router.workers.body_relay import BodyRelay
from warmfleet_router.workers.liveness import LivenessSettings, LivenessWatch, ResponseKind
from warmfleet_runtime.http.response_body import ResponseBody
from warmfleet_testing.wires.worker_wire import Wire, begun_answer, framed

EVENT = b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"x","type":"server_error"}}\n\n'


class Stream:
    """One stream through the router, from its worker's bytes to its client's."""

    def __init__(self) -> None:
        self.worker, self.client = Wire(), Wire()
        self.usage = RequestUsage(charged_cost=0.0)
        self.gaps = LatencyCounts()
        self.first_tokens = 0
        self.seconds = 0.0
        self.body = ResponseBody(self.client, self.client)

    async def open(self, stack: ExitStack) -> None:
        async def send(message: Any) -> None:
            raise AssertionError(message)

        client = stack.enter_context(
            ClientResponse(send, self.body, write_seconds=60, ping_seconds=None, on_stalled=lambda: None)
        )
        self.relay = EventRelay(
            client,
            SseSplitter(),
            self.usage,
            TokenGaps(1, now=lambda: self.seconds, record=self.gaps.add, record_mean=lambda _: None),
            role_events=1,
            on_first_token=self._on_first_token,
        )
        relay = BodyRelay(await begun_answer(self.worker), self.relay)
        read = stack.enter_context(
            LivenessWatch(LivenessSettings()).body("w", ResponseKind.STREAM, lambda: None)
        )
        self.ended = asyncio.create_task(relay.run(read))
        stack.callback(relay.close)
        stack.callback(self.ended.cancel)
        await asyncio.sleep(0)

    def arrives(self, *events: bytes, after_seconds: float = 0.2) -> None:
        self.seconds += after_seconds
        self.worker.arrives(framed(*events))

    def client_reads(self) -> None:
        self.client.write_paused = False
        self.body.writable()

    @property
    def sent(self) -> bytes:
        """To the client, without the framing."""
        return b"".join(part.partition(b"\r\n")[2][:-2] for part in self.client.written)

    def _on_first_token(self) -> None:
        self.first_tokens += 1


@pytest.fixture
async def stream() -> Any:
    with ExitStack() as stack:
        made = Stream()
        await made.open(stack)
        yield made


@contextmanager
def scheduled_work() -> Generator[list[str], None, None]:
    """What is scheduled on the event loop meanwhile: tasks, futures, timers, callbacks."""
    loop, found = asyncio.get_running_loop(), []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("create_task", "create_future", "call_soon", "call_later", "call_at"):
            patch.setattr(loop, name, lambda *_, name=name, **__: found.append(name))
        yield found


async def test_an_event_costs_one_write_and_no_task_timer_or_turn_of_the_loop(stream: Stream) -> None:
    stream.arrives(EVENT)
    before = len(stream.client.written)

    with scheduled_work() as work:
        for _ in range(100):
            stream.arrives(EVENT)

    assert work == []
    assert len(stream.client.written) - before == 100
    assert stream.sent == 101 * EVENT


async def test_an_event_goes_on_in_the_chunk_in_which_it_came(stream: Stream) -> None:
    stream.arrives(EVENT, EVENT)  # the role and the first token
    stream.arrives(EVENT)  # shows that the parser is between two chunks
    came = framed(EVENT)

    stream.worker.arrives(came)

    assert stream.client.written[-1] == came
    assert stream.usage.output_tokens == 3


async def test_a_stream_that_is_cut_anywhere_and_read_with_pauses_is_the_same(stream: Stream) -> None:
    random = Random(5)
    events = [b'data: {"choices":[%d]}\n\n' % random.randrange(10**6) for _ in range(2000)]
    pings = [b": ping\n\n"] * 20
    sent = random.sample(events + pings, len(events) + len(pings))
    kept = b""
    for event in sent:
        # Mostly one whole chunk, as workers write them; else what a network makes of several.
        kept += framed(event)
        if random.random() < 0.1:
            continue
        cut = random.randrange(1, len(kept)) if random.random() < 0.2 else len(kept)
        stream.worker.arrives(kept[:cut])
        kept = kept[cut:]
        if random.random() < 0.1:
            stream.client_reads()
        elif random.random() < 0.02:
            stream.client.write_paused = True
    stream.worker.arrives(kept)
    stream.client_reads()

    assert stream.sent == b"".join(sent)
    assert stream.usage.output_tokens == len(events) - 1  # without the role


async def test_an_event_that_comes_in_pieces_is_written_once_it_is_whole(stream: Stream) -> None:
    stream.arrives(EVENT[:20])
    assert stream.sent == b""

    stream.arrives(EVENT[20:] + EVENT[:7])

    assert stream.sent == EVENT


async def test_tokens_are_events_after_the_role_without_comments_and_errors(stream: Stream) -> None:
    stream.arrives(EVENT)
    assert (stream.usage.output_tokens, stream.first_tokens) == (0, 0)
    stream.arrives(b": ping\n\n")
    stream.arrives(EVENT)
    assert (stream.usage.output_tokens, stream.first_tokens) == (1, 1)
    stream.arrives(EVENT, EVENT)
    stream.arrives(EVENT + b": ping\n\n")
    assert not stream.relay.failed

    stream.arrives(ERROR)

    assert stream.relay.failed
    assert (stream.usage.output_tokens, stream.first_tokens) == (4, 1)


async def test_gaps_are_timed_between_tokens_but_not_across_a_write_that_the_client_did_not_take(
    stream: Stream,
) -> None:
    stream.arrives(EVENT)
    stream.arrives(EVENT)
    stream.arrives(EVENT, after_seconds=0.1)
    assert sum(stream.gaps.histogram.counts) == 1

    # When the client takes nothing for a second
    stream.client.write_paused = True
    stream.arrives(EVENT, after_seconds=0.1)
    stream.seconds += 1.0
    stream.client_reads()
    stream.arrives(EVENT, after_seconds=0.1)

    # Then the token before the pause counts, and the one after it does not
    assert sum(stream.gaps.histogram.counts) == 2
    stream.arrives(DONE)
    assert sum(stream.gaps.histogram.counts) == 2


async def test_a_client_that_reads_nothing_gets_everything_later_and_in_order(stream: Stream) -> None:
    stream.arrives(EVENT)
    stream.client.write_paused = True
    numbered = [b"data: %d\n\n" % number for number in range(50)]
    for event in numbered:
        stream.arrives(event)
    assert stream.sent == EVENT

    stream.client_reads()

    assert stream.sent == EVENT + b"".join(numbered)
