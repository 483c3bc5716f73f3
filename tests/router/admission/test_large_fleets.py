"""Admission over fleets of which only the cheapest workers are priced."""

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit
from warmfleet_router.routing.shortlist import LISTED_WORKERS
from warmfleet_testing.router.admission_fleet import AdmissionFleet

BUSY = LoadReport(
    step_time=StepTimeFit(per_prefill_token_seconds=0.001, samples=100),
    max_running_sequences=64,
    total_blocks=10_000,
    running_sequences=1,
    queued_uncached_tokens=150,
)
"""Its prefill window is full."""
LAST = f"w{2 * LISTED_WORKERS - 1}"
SLOW = LoadReport(
    step_time=StepTimeFit(per_prefill_token_seconds=0.1, samples=100),
    max_running_sequences=64,
    total_blocks=10_000,
    running_sequences=1,
)


async def test_a_request_goes_to_the_only_worker_with_capacity_although_all_that_are_listed_cost_less() -> (
    None
):
    async with AdmissionFleet(2 * LISTED_WORKERS, BUSY) as fleet:
        fleet.fleet.load[LAST] = SLOW

        dispatch = await fleet.submit([1] * 40)
        picked = dispatch.picked
        dispatch.release()

    assert picked.candidate.uid == LAST
    assert picked.ranking.candidates[1].cost.total_ms < picked.candidate.cost.total_ms
    assert picked.ranking.reason.startswith("first with capacity")


async def test_a_request_waits_when_no_worker_of_a_large_fleet_has_capacity() -> None:
    async with AdmissionFleet(2 * LISTED_WORKERS, BUSY) as fleet:
        waiting = fleet.submit([1] * 40)
        await fleet.serve()
        is_waiting = not waiting.done()

        await fleet.report(LAST, SLOW)
        dispatch = await waiting
        dispatch.release()

    assert is_waiting
    assert dispatch.picked.candidate.uid == LAST
