"""How long a request waits for the worker that holds its prompt while another one has capacity."""

import pytest

from warmfleet_router.admission.placement import Patience
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.routing.capacity import Shortage
from warmfleet_testing.router.admission_fleet import AdmissionFleet, seats
from warmfleet_testing.router.picker_fleet import chain

SETTINGS = AdmissionSettings()
PROMPT = [7] * 8000
"""Takes 8 s on a worker that holds nothing of it, and costs 12 s: later requests wait half of that."""
QUEUED_TOKENS = 1000


@pytest.mark.parametrize(
    ("declined_seconds", "elsewhere_seconds", "is_left"),
    [
        (1.9, 0.1, True),
        (2.0, 0.1, False),
        (7.9, 8.0, True),
        (8.0, 8.0, False),
        (29.9, 1000.0, True),
        (30.0, 1000.0, False),
    ],
)
def test_a_request_declines_for_two_seconds_or_for_as_long_as_it_would_cost_elsewhere(
    declined_seconds: float, elsewhere_seconds: float, *, is_left: bool
) -> None:
    assert Patience.of(SETTINGS, declined_seconds).is_left(elsewhere_seconds * 1e3) is is_left


def one_warm_worker() -> AdmissionFleet:
    """`w0` holds the prompt and computes others for a second; `w1` is idle and holds nothing."""
    admission = AdmissionFleet(2, seats(8, 0))
    admission.fleet.store("w0", chain(PROMPT))
    admission.fleet.load["w0"] = seats(8, 1, queued_tokens=QUEUED_TOKENS)
    return admission


async def test_a_slow_fleet_does_not_compute_a_prefix_again_because_two_seconds_have_passed() -> None:
    async with one_warm_worker() as admission:
        asked = admission.submit(PROMPT)
        for _ in range(7):
            await admission.serve()
            admission.clock.seconds += 1.0
        await admission.serve()
        assert not asked.done()

        await admission.report("w0", seats(8, 1))

        assert asked.result().picked.candidate.uid == "w0"


async def test_a_wait_that_is_worth_it_is_waited_to_its_end() -> None:
    # 8.5 s are longer than the 8 s of the prompt, and less than its cost: a request that began
    # such a wait and ended it early would lose both.
    async with one_warm_worker() as admission:
        admission.fleet.load["w0"] = seats(8, 1, queued_tokens=8500)
        asked = admission.submit(PROMPT)
        for queued in range(8500, -1, -250):
            await admission.report("w0", seats(8, 1, queued_tokens=queued))
            if asked.done():
                break
            admission.clock.seconds += 0.25

        assert asked.result().picked.candidate.uid == "w0"


async def test_a_request_goes_elsewhere_when_it_has_waited_for_as_long_as_it_costs_there() -> None:
    async with one_warm_worker() as admission:
        asked = admission.submit(PROMPT)
        await admission.serve()
        admission.clock.seconds += 11.9
        await admission.serve()
        assert not asked.done()
        admission.clock.seconds += 0.3
        await admission.serve()

        assert asked.result().picked.candidate.uid == "w1"
        assert f"w0 lacks {Shortage.PREFILL}" in asked.result().picked.ranking.reason


async def test_a_request_waits_no_longer_than_two_seconds_for_a_seat() -> None:
    async with one_warm_worker() as admission:
        admission.fleet.load["w0"] = seats(8, 8)
        asked = admission.submit(PROMPT)
        await admission.serve()
        assert not asked.done()

        admission.clock.seconds += 2.1
        await admission.serve()

        assert asked.result().picked.candidate.uid == "w1"
        assert f"w0 lacks {Shortage.SEATS}" in asked.result().picked.ranking.reason


async def test_time_in_which_no_worker_had_capacity_is_not_counted() -> None:
    # given: the other worker has no seat, for longer than the prompt would take there
    async with one_warm_worker() as admission:
        admission.fleet.load["w1"] = seats(8, 8)
        asked = admission.submit(PROMPT)
        await admission.serve()
        admission.clock.seconds += 20.0
        await admission.serve()

        # when: it has one
        await admission.report("w1", seats(8, 0))
        assert not asked.done()

        # then: from now on
        admission.clock.seconds += 12.1
        await admission.serve()
        assert asked.result().picked.candidate.uid == "w1"
