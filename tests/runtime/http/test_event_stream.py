"""Events are written in the step that has them; quiet streams get pings, and slow clients are given up."""

import asyncio
from dataclasses import dataclass, field

import pytest

from warmfleet_runtime.http.event_stream import PING, EventWriter, SlowClientError
from warmfleet_runtime.http.response_body import ResponseBody

EVENT = b"data: x\n\n"


@dataclass
class Connection:
    """Transport and flow control in one."""

    write_paused: bool = False
    written: list[bytes] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data.partition(b"\r\n")[2][:-2])
        self.came.set()


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
def body(connection: Connection) -> ResponseBody:
    return ResponseBody(connection, connection)


async def test_events_cost_one_write_each_and_no_task_timer_or_turn_of_the_loop(
    connection: Connection, body: ResponseBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    with EventWriter(body, ping_seconds=60, write_seconds=60) as writer:
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            for name in ("create_task", "create_future", "call_soon", "call_later", "call_at"):
                patch.setattr(loop, name, lambda *_, name=name, **__: found.append(name))
            for _ in range(100):
                await writer.write(EVENT)

    assert found == []
    assert connection.written == 100 * [EVENT]


async def test_a_quiet_stream_gets_pings_until_it_ends(connection: Connection, body: ResponseBody) -> None:
    with EventWriter(body, ping_seconds=0.01, write_seconds=60) as writer:
        await writer.write(EVENT)
        for _ in range(2):
            connection.came.clear()
            await asyncio.wait_for(connection.came.wait(), 10)

    assert connection.written[:3] == [EVENT, PING, PING]
    count = len(connection.written)
    await asyncio.sleep(0.03)
    assert len(connection.written) == count


async def test_a_write_waits_for_a_client_that_has_too_much_to_read(
    connection: Connection, body: ResponseBody
) -> None:
    connection.write_paused = True
    with EventWriter(body, ping_seconds=60, write_seconds=60) as writer:
        writing = asyncio.create_task(writer.write(EVENT))
        await asyncio.sleep(0)
        assert connection.written == []

        connection.write_paused = False
        body.writable()
        await asyncio.wait_for(writing, 10)

    assert connection.written == [EVENT]


async def test_a_client_that_takes_nothing_in_time_is_given_up(
    connection: Connection, body: ResponseBody
) -> None:
    connection.write_paused = True
    with (
        EventWriter(body, ping_seconds=0.005, write_seconds=0.02) as writer,
        pytest.raises(SlowClientError),
    ):
        await writer.write(EVENT)

    assert connection.written == [], "no ping either"
