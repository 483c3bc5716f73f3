"""One pass over a queue: what it costs, how long it occupies the event loop, what a wide request keeps."""

import asyncio
import itertools

import pytest

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.dispatcher import PASS_SECONDS, REPRICE_SECONDS
from warmfleet_testing.router.admission_fleet import MODEL, AdmissionFleet, seats
from warmfleet_testing.router.picker_fleet import chain

WORKERS = 100
WAITING = 64
PROMPT_TOKENS = 1600


def long_prompt(number: int) -> list[int]:
    return [number + 1] * PROMPT_TOKENS


def warm_fleet() -> AdmissionFleet:
    """Worker `wN` is full and holds prompt N; the last ones are idle and hold nothing."""
    admission = AdmissionFleet(WORKERS, seats(8, 0))
    for number in range(WAITING):
        admission.fleet.store(f"w{number}", chain(long_prompt(number)))
        admission.fleet.load[f"w{number}"] = seats(8, 8)
        admission.fleet.leases.seat_times.add(f"w{number}", 0.1)
    return admission


async def test_a_worker_that_gets_capacity_has_only_its_own_requests_priced_over_the_fleet() -> None:
    # given: 64 requests that wait for 64 warm workers, while 36 idle ones would compute for 1.6 s
    async with warm_fleet() as admission:
        asked = [admission.submit(long_prompt(number)) for number in range(WAITING)]
        for _ in range(10):
            await admission.serve()
        assert not any(task.done() for task in asked)

        # when: nothing changed; then one worker has a seat
        before = admission.picker.choices
        await admission.serve()
        unchanged = admission.picker.choices - before
        await admission.report("w40", seats(8, 7))
        one_seat = admission.picker.choices - before - unchanged

        # then
        assert [number for number, task in enumerate(asked) if task.done()] == [40]
        assert asked[40].result().picked.candidate.uid == "w40"
    assert unchanged == 0
    assert one_seat == 1


async def test_a_request_that_waits_for_its_worker_is_priced_again_after_a_while() -> None:
    async with warm_fleet() as admission:
        asked = admission.submit(long_prompt(0))
        await admission.serve()
        assert not asked.done()

        # when: the warm worker gets a long queue, so that an idle one is better
        admission.fleet.load["w0"] = seats(8, 8, queued_tokens=100_000)
        await admission.serve()
        still_waits = not asked.done()
        admission.clock.seconds += REPRICE_SECONDS
        await admission.serve()

        assert still_waits
        assert asked.result().picked.candidate.uid != "w0"


async def test_a_pass_over_the_queue_lets_other_tasks_run_after_its_time_budget() -> None:
    # given: a choice takes a millisecond, and 64 requests have to be priced
    async with warm_fleet() as admission:
        admission.picker.choice_seconds = 0.001
        asked = [admission.submit(long_prompt(number)) for number in range(WAITING)]
        seen = []

        async def watch() -> None:
            while True:
                seen.append(admission.picker.choices)
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        await admission.serve()
        watcher.cancel()

        most = max(later - earlier for earlier, later in itertools.pairwise(seen))
        assert admission.picker.choices >= WAITING
        assert most <= PASS_SECONDS / 0.001 + 1
        assert not any(task.done() for task in asked)


async def test_a_wide_request_keeps_one_worker_and_the_others_go_on_being_assigned() -> None:
    # given: 4 x 8 seats, half of them free, and a request of six sequences that waited for its patience
    async with AdmissionFleet(4, seats(8, 4)) as admission:
        wide = admission.submit([1] * 4, choices=6)
        await admission.serve()
        admission.clock.seconds += 3

        # when: more requests come than the other workers have seats
        narrow = [admission.submit([number] * 4) for number in range(2, 18)]
        await admission.serve()

        # then
        assigned = [task.result().picked.candidate.uid for task in narrow if task.done()]
        kept = {f"w{number}" for number in range(4)} - set(assigned)
        assert not wide.done()
        assert len(assigned) == 12
        assert len(kept) == 1

        # when: two sequences of the worker that was kept have ended
        await admission.report(kept.copy().pop(), seats(8, 2))
        assert {wide.result().picked.candidate.uid} == kept


async def test_many_wide_requests_keep_one_worker_together() -> None:
    async with AdmissionFleet(4, seats(8, 4)) as admission:
        wide = [admission.submit([1 + number] * 4, choices=6) for number in range(20)]
        await admission.serve()
        admission.clock.seconds += 3
        narrow = [admission.submit([100 + number] * 4) for number in range(16)]
        await admission.serve()

        assert not any(task.done() for task in wide)
        assert sum(task.done() for task in narrow) == 12


async def test_wide_requests_that_fit_nowhere_do_not_stop_narrow_ones_before_their_patience_ends() -> None:
    async with AdmissionFleet(4, seats(8, 4)) as admission:
        wide = [admission.submit([1 + number] * 4, choices=6) for number in range(20)]
        narrow = [admission.submit([100 + number] * 4) for number in range(16)]
        await admission.serve()

        assert not any(task.done() for task in wide)
        assert all(task.done() for task in narrow)


async def test_more_sequences_than_any_worker_has_seats_are_refused_at_once() -> None:
    async with AdmissionFleet(2, seats(8, 8)) as admission:
        admission.fleet.load["w1"] = seats(16, 16)
        reserve = admission.admission.reserve
        with admission.ticket() as ticket:
            with pytest.raises(RequestError) as refused:
                reserve(ticket, MODEL, priority=0, sequences=17, output_limit_tokens=None)
            reserve(ticket, MODEL, priority=0, sequences=16, output_limit_tokens=None)
            # A fleet that has reported no seats refuses nothing.
            admission.fleet.load = dict.fromkeys(admission.fleet.load, seats(0, 0))
            reserve(ticket, MODEL, priority=0, sequences=17, output_limit_tokens=None)

    error = refused.value
    assert (error.status, error.code) == (400, "too_many_sequences")
    assert "17" in error.message
    assert "16" in error.message
