"""A read is ended when it took too long, and for no other reason."""

import asyncio
import contextlib
import math
import socket
import time

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.workers.read_deadline import ReadDeadline, deadline_of_reads

TIMER_SECONDS = 0.001
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
"""The router runs on uvloop."""


class FakeLoop:
    """Time that a test moves on, and the timers that are due by then."""

    def __init__(self):
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self):
        return self.now

    def call_at(self, when, callback):
        self.timers.append(FakeTimer(when, callback))
        return self.timers[-1]

    def call_soon(self, callback, *args):
        self.call_at(self.now, lambda: callback(*args))

    def pass_until(self, now):
        while due := [timer for timer in self.timers if timer.due_at <= now]:
            first = min(due, key=FakeTimer.when)
            self.timers.remove(first)
            self.now = first.due_at
            first.callback()
        self.now = now


class FakeTimer:
    def __init__(self, due_at, callback):
        self.due_at, self.callback = due_at, callback

    def when(self):
        return self.due_at

    def cancel(self):
        self.due_at = math.inf


class FakeTimeout:
    expired_at = None

    def expired(self):
        return self.expired_at is not None

    def when(self):
        return self.expired_at

    def reschedule(self, when):
        self.expired_at = when


@settings(max_examples=300)
@given(
    reads=st.lists(
        st.tuples(st.floats(0, 15), st.floats(0, 30), st.sampled_from([1.0, 3.0, 10.0])),
        min_size=1,
        max_size=12,
    )
)
def test_a_read_is_ended_exactly_when_it_took_too_long(reads):
    """Each read takes so long, what it read is worked on for so long, and a read may take so long."""
    loop, timeout, longest_seconds = FakeLoop(), FakeTimeout(), [10.0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(asyncio, "get_running_loop", lambda: loop)
        deadline = ReadDeadline(timeout, lambda: longest_seconds[0])
    for read_seconds, work_seconds, longest in reads:
        longest_seconds[0] = longest
        began_at = loop.now
        deadline.read_begins()
        loop.pass_until(began_at + read_seconds)
        late_seconds = began_at + read_seconds - (began_at + longest)
        if late_seconds >= 0:
            assert timeout.expired_at == began_at + longest
            return
        if late_seconds >= -TIMER_SECONDS:
            return  # either is right
        assert timeout.expired_at is None
        deadline.read_ends()
        loop.pass_until(loop.now + work_seconds)
        assert timeout.expired_at is None
        assert sum(timer.due_at < math.inf for timer in loop.timers) <= 1
    deadline.close()
    loop.pass_until(loop.now + 100)
    assert timeout.expired_at is None


def run(new_loop, scenario):
    """The scenario's result, and the errors of callbacks that its loop was given."""
    errors = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        return await scenario

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(watched()), errors


class SlowNeighbour(asyncio.Protocol):
    def data_received(self, _data):
        time.sleep(0.2)


@LOOPS
@pytest.mark.parametrize("held_up_in", ["a task", "a callback of another connection"])
def test_bytes_that_came_while_this_process_was_held_up_are_no_silence(new_loop, held_up_in):
    async def read_until(*, is_closed):
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        neighbours, far_end = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        transport, _ = await loop.create_connection(SlowNeighbour, sock=neighbours)

        async def hold_up():
            await asyncio.sleep(0.02)
            theirs.send(b"a message")
            if is_closed:
                theirs.close()
            if held_up_in == "a task":
                time.sleep(0.2)  # noqa: ASYNC251 - the neighbour's long call
            else:
                far_end.send(b"long work")

        neighbour = asyncio.create_task(hold_up())
        try:
            async with deadline_of_reads(lambda: 0.1) as deadline:
                deadline.read_begins()
                data = await (reader.readexactly(100) if is_closed else reader.read(100))
                deadline.read_ends()
                await asyncio.sleep(0.05)
                return data
        except asyncio.IncompleteReadError as error:
            return error.partial, "closed"
        finally:
            await neighbour
            writer.close()
            transport.close()
            theirs.close()
            far_end.close()

    for _ in range(3):
        assert run(new_loop, read_until(is_closed=False)) == (b"a message", [])
        assert run(new_loop, read_until(is_closed=True)) == ((b"a message", "closed"), [])


@LOOPS
def test_a_read_without_bytes_is_ended(new_loop):
    async def silent():
        with pytest.raises(TimeoutError):
            async with deadline_of_reads(lambda: 0.0345) as deadline:
                deadline.read_begins()
                await asyncio.Event().wait()

    for _ in range(5):
        assert run(new_loop, silent()) == (None, [])


@LOOPS
@pytest.mark.parametrize("passes", range(10))
def test_a_read_that_ends_while_it_is_judged_is_over(new_loop, passes):
    async def ends_late():
        """How far it came."""
        came = "into the read"
        with contextlib.suppress(TimeoutError):
            async with deadline_of_reads(lambda: 0.0) as deadline:
                deadline.read_begins()
                for _ in range(passes):
                    await asyncio.sleep(0)
                deadline.read_ends()
                came = "to the end of the read"
                await asyncio.sleep(0.01)
                came = "past it"
        return came

    came, errors = run(new_loop, ends_late())

    assert came in {"into the read", "past it"}
    assert errors == []
    assert passes > 0 or came == "past it"


@LOOPS
@pytest.mark.parametrize("passes", range(8))
def test_a_block_that_ends_while_a_read_is_judged_leaves_nothing_behind(new_loop, passes):
    async def fails():
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with deadline_of_reads(lambda: 0.0) as deadline:
                deadline.read_begins()
                for _ in range(passes):
                    await asyncio.sleep(0)
                raise ConnectionError
        await asyncio.sleep(0.01)

    assert run(new_loop, fails()) == (None, [])


async def test_a_source_that_goes_on_after_its_silence_is_not_read_for_ever():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10), deadline_of_reads(lambda: 0.02) as deadline:
            deadline.read_begins()
            with contextlib.suppress(asyncio.CancelledError):  # as a source must not
                await asyncio.Event().wait()
            deadline.read_ends()
            deadline.read_begins()
            pytest.fail("it would be read without a deadline")
