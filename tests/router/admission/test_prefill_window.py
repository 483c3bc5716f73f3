"""How much prefill a router sends to a worker ahead: more where steps are long and take several prompts."""

import msgspec
import pytest

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit
from warmfleet_router.routing.capacity import CapacityLimits
from warmfleet_router.tenants import ANONYMOUS, Tenant
from warmfleet_testing.router.admission_fleet import AdmissionFleet

SET_STEPS = LoadReport(
    step_time=StepTimeFit(base_seconds=0.05, per_prefill_token_seconds=0.001, samples=100),
    max_running_sequences=64,
    running_sequences=1,
    total_blocks=100_000,
    fixed_batched_tokens=2048,
)
"""A step takes 50 ms without a prompt and a token of one 1 ms: 200 tokens are four steps."""
TIMED_STEPS = msgspec.structs.replace(SET_STEPS, fixed_batched_tokens=msgspec.UNSET)
"""The same of a worker whose steps take about 100 ms."""


async def sent(fleet: AdmissionFleet, prompts: list[list[int]], tenant: Tenant = ANONYMOUS) -> list[bool]:
    """Whether each of the prompts, which come in this order, is sent at once."""
    waits = [fleet.submit(prompt, tenant=tenant) for prompt in prompts]
    await fleet.settle()
    return [waiting.done() for waiting in waits]


@pytest.mark.parametrize(
    ("load", "expected"), [(SET_STEPS, 4), (TIMED_STEPS, 2)], ids=["four steps", "100 ms"]
)
async def test_prompts_are_sent_until_what_is_queued_fills_the_window(
    load: LoadReport, expected: int
) -> None:
    # 64 tokens are queued after the first one, 192 after the third and 256 after the fourth.
    prompts = [[number] * 64 for number in range(6)]

    async with AdmissionFleet(1, load) as fleet:
        assert await sent(fleet, prompts) == [True] * expected + [False] * (6 - expected)


@pytest.mark.parametrize("load", [SET_STEPS, TIMED_STEPS], ids=["set steps", "timed steps"])
async def test_prompts_join_their_prefix_in_the_queue_while_little_else_is_queued(load: LoadReport) -> None:
    prefix = [7] * 640
    followers = [[*prefix, *[number] * 30] for number in range(5)]

    async with AdmissionFleet(1, load) as fleet:
        # Three bring 90 tokens with them, four 120.
        assert await sent(fleet, [prefix, *followers]) == [True, True, True, True, False, False]


@pytest.mark.parametrize("load", [SET_STEPS, TIMED_STEPS], ids=["set steps", "timed steps"])
async def test_a_first_block_in_common_lets_no_flood_into_the_queue(load: LoadReport) -> None:
    prompts = [[*[7] * 16, *[100 + number] * 80] for number in range(20)]

    async with AdmissionFleet(1, load) as fleet:
        assert sum(await sent(fleet, prompts)) <= 4


@pytest.mark.parametrize("flood", [2, 3, 4, 8])
async def test_a_light_tenant_is_before_the_prompts_of_a_flood_in_any_part_of_the_window(flood: int) -> None:
    flooder, light = Tenant(name="flooder"), Tenant(name="another")

    async with AdmissionFleet(1, SET_STEPS) as fleet:
        # Two of them are more than 100 ms, three fill the window, and all others wait.
        await sent(fleet, [[number] * 80 for number in range(flood)], flooder)
        [is_sent] = await sent(fleet, [[99] * 80], light)
        if not is_sent:
            await fleet.serve()

        assert [asked.picked.bypasses for asked in fleet.dispatched] == [*[False] * min(flood, 3), True]


@pytest.mark.parametrize(("load", "window_tokens"), [(SET_STEPS, 200), (TIMED_STEPS, 100)])
async def test_prompts_are_bypassed_within_the_same_window(load: LoadReport, window_tokens: int) -> None:
    async with AdmissionFleet(1, load) as fleet:
        snapshot = fleet.picker.snapshot(fleet.fleet.workers)

        assert snapshot.is_within_window("w0", window_tokens - 1, CapacityLimits())
        assert not snapshot.is_within_window("w0", window_tokens + 1, CapacityLimits())
