"""vLLM's cache events in order: what is lost on the way is replayed, or reported as lost."""

import asyncio
from pathlib import Path

import pytest

from warmfleet_testing.vllm.wire import Wire
from warmfleet_worker.vllm_engine import event_socket
from warmfleet_worker.vllm_engine.event_socket import MAX_QUEUED_BATCHES, EventSocket
from warmfleet_worker.vllm_engine.resident import EventsLostError

FOLDER = Path("/tmp/folder")


@pytest.fixture
def wire(monkeypatch):
    made = Wire()
    made.install(monkeypatch)
    return made


async def received(events, number):
    """The next payloads of one iteration."""
    found = []
    async with asyncio.timeout(10):
        batches = events.batches()
        async for payload in batches:
            found.append(payload)
            if len(found) == number:
                await batches.aclose()
    return found


def publish(wire, *numbers, arrives=True):
    for number in numbers:
        wire.publish(b"batch %d" % number, arrives=arrives)


def payloads(*numbers):
    return [b"batch %d" % number for number in numbers]


async def test_batches_come_as_they_were_sent(wire):
    with EventSocket(FOLDER) as events:
        publish(wire, *range(3))
        assert await received(events, 3) == payloads(0, 1, 2)
        assert events.endpoint == "ipc:///tmp/folder/events"
        assert (wire.opened[0].endpoint, wire.opened[0].hwm) == (events.endpoint, MAX_QUEUED_BATCHES)
    assert wire.destroyed == 1
    assert all(socket.is_closed for socket in wire.opened)


async def test_batches_that_were_lost_on_the_way_are_replayed_in_their_place(wire):
    with EventSocket(FOLDER) as events:
        publish(wire, 0)
        publish(wire, 1, 2, arrives=False)
        publish(wire, 3, 4)
        assert await received(events, 5) == payloads(*range(5))
        [_, replays] = wire.opened
        assert replays.endpoint == events.replay_endpoint == "ipc:///tmp/folder/replay"


async def test_the_ones_before_the_first_that_arrives_are_replayed(wire):
    with EventSocket(FOLDER) as events:
        publish(wire, 0, 1, arrives=False)
        publish(wire, 2)
        assert await received(events, 3) == payloads(0, 1, 2)


async def test_what_came_with_a_replay_does_not_come_twice(wire):
    """The replay brings all that were sent until then, those that are still on their way among them."""
    with EventSocket(FOLDER) as events:
        publish(wire, 0, arrives=False)
        publish(wire, 1)
        assert await received(events, 2) == payloads(0, 1)
        wire.send(b"", (0).to_bytes(8, "big"), b"batch 0")
        publish(wire, 2)
        assert await received(events, 1) == payloads(2)


@pytest.mark.parametrize("answers", [True, False])
async def test_what_cannot_be_replayed_is_reported_once_and_what_follows_comes(wire, answers, monkeypatch):
    monkeypatch.setattr(event_socket, "REPLAY_SECONDS", 0.05)
    wire.answers_replays = answers
    with EventSocket(FOLDER) as events:
        publish(wire, 0, 1, 2, arrives=False)
        publish(wire, 3, 4)
        wire.forget(1)
        lost = 1 if answers else 3
        with pytest.raises(EventsLostError, match=f"{lost} batches of vLLM's cache events are lost"):
            await received(events, 1)

        assert await received(events, 2) == payloads(3, 4)
    assert all(socket.is_closed for socket in wire.opened)


@pytest.mark.parametrize("parts", [(b"", b"12345678"), (b"", b"1", b"payload")], ids=["parts", "number"])
async def test_a_message_of_another_form_counts_as_lost(wire, parts):
    with EventSocket(FOLDER) as events:
        wire.send(*parts)
        with pytest.raises(EventsLostError, match="another form"):
            await received(events, 1)
