"""The work queue, on a clock that the tests advance."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.watch.key_processor import KeyProcessor
from warmfleet_operator.watch.queue import MAX_BACKOFF_SECONDS, WorkQueue

KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), KEYS, st.floats(0, 5)),
        st.tuples(st.just("take"), st.just(""), st.floats(0, 3)),
        st.tuples(st.just("done"), KEYS, st.just(0.0)),
        st.tuples(st.just("failed"), KEYS, st.just(0.0)),
    ),
    max_size=60,
)


def plain() -> WorkQueue[str]:
    return WorkQueue(uniform=lambda low, high: (low + high) / 2)


def test_a_key_is_in_the_queue_once() -> None:
    queue = plain()

    for _ in range(3):
        queue.add("a", 0.0)

    assert queue.take(0.0) == "a"
    assert queue.take(0.0) is None


def test_what_is_due_first_is_taken_first() -> None:
    queue = plain()
    queue.add("late", 5.0)
    queue.add("soon", 1.0)

    assert queue.take(0.5) is None
    assert queue.next_due() == 1.0
    assert [queue.take(6.0), queue.take(6.0)] == ["soon", "late"]


def test_a_key_added_while_it_is_processed_is_processed_again() -> None:
    queue = plain()
    queue.add("a", 0.0)
    assert queue.take(0.0) == "a"

    queue.add("a", 0.0)

    assert queue.take(0.0) is None
    assert queue.next_due() is None
    queue.done("a")
    assert queue.take(0.0) == "a"


def test_the_backoff_doubles_up_to_a_minute() -> None:
    queue = plain()
    pauses = []
    now = 0.0
    queue.add("a", now)
    for _ in range(16):
        assert queue.take(now) == "a"
        pauses.append(queue.failed("a", now))
        assert queue.take(now) is None
        now += pauses[-1]

    assert pauses[:3] == [0.005, 0.01, 0.02]
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_BACKOFF_SECONDS


def test_a_change_shortens_a_backoff_but_not_a_requested_pause() -> None:
    queue = plain()
    for key, asked in (("broken", 0.0), ("throttled", 7.0)):
        queue.add(key, 0.0)
        queue.take(0.0)
        for _ in range(12):
            queue.failed(key, 0.0, asked)

    queue.add("broken", 1.0)
    queue.add("throttled", 1.0)

    assert queue.take(1.0) == "broken"
    assert queue.take(6.9) is None
    assert queue.take(7.0) == "throttled"


def test_success_resets_the_backoff() -> None:
    queue = plain()
    queue.add("a", 0.0)
    for _ in range(10):
        queue.failed("a", 0.0)
    queue.done("a")

    assert queue.failed("a", 0.0) == 0.005


@given(STEPS)
def test_no_key_is_lost_and_none_is_processed_twice_at_once(steps) -> None:
    queue = plain()
    now, working, owed = 0.0, set(), {}
    for step, key, seconds in steps:
        if step == "add":
            queue.add(key, now + seconds)
            owed[key] = min(owed.get(key, float("inf")), now + seconds)
        elif step == "take":
            now += seconds
            taken = queue.take(now)
            ready = {name for name, due in owed.items() if due <= now and name not in working}
            assert (taken in ready) if ready else taken is None
            if taken is not None:
                working.add(taken)
                del owed[taken]
        elif key in working:
            working.discard(key)
            if step == "done":
                queue.done(key)
            else:
                owed[key] = now + queue.failed(key, now)
    assert len(queue) == len(owed)
    assert queue.working == len(working)


@given(st.lists(st.tuples(KEYS, st.floats(0, 100)), max_size=300))
def test_superseded_entries_do_not_accumulate(adds) -> None:
    queue = plain()
    for key, due in sorted(adds, key=lambda add: -add[1]):
        queue.add(key, due)

    assert len(queue._order) <= 64 + 4 * 3 + 1


async def test_processing_is_bounded_and_serial_per_key() -> None:
    running: list[str] = []
    most, seen = 0, []
    processor: KeyProcessor[str]

    async def handle(key: str) -> None:
        nonlocal most
        assert key not in running
        running.append(key)
        most = max(most, len(running))
        await asyncio.sleep(0.005)
        running.remove(key)
        seen.append(key)
        processor.queue.done(key)

    processor = KeyProcessor(handle, 2)
    task = asyncio.create_task(processor.run())
    for _ in range(3):
        for key in "abcd":
            processor.add(key)
        await asyncio.sleep(0.012)
    async with asyncio.timeout(10):
        while len(processor.queue) or processor.queue.working:  # noqa: ASYNC110 - the queue has no event
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert most == 2
    assert set(seen) == set("abcd")
    assert len(seen) <= 12
