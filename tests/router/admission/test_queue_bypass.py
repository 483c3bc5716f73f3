"""Which requests bypass another tenant's prompts at a worker: the rule, its counts, and both over sockets."""

# ruff: noqa: ASYNC110 - what is waited for happens in other threads

import asyncio
from pathlib import Path

import pytest

from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.queue_bypass import Prefill, Prefills, may_bypass
from warmfleet_router.routing.capacity import CapacityLimits
from warmfleet_router.routing.leases import Charge, Leases
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

WINDOW_TOKENS = 200
COUNTERS = {"flooder": 50.0, "light": 10.0, "third": 10.0, "heavier": 70.0}


def prefill(tenant: str, *, extra: bool, priority: int = 0, tokens: int = 150) -> Prefill:
    return Prefill(tenant, priority, tokens, is_extra=extra)


FIRST, EXTRA = prefill("flooder", extra=False), prefill("flooder", extra=True)


@pytest.mark.parametrize(
    ("prefills", "tenant", "priority", "expected"),
    [
        ([FIRST, EXTRA], "light", 0, True),
        ([EXTRA], "light", 0, True),
        ([FIRST], "light", 0, False),
        ([], "light", 0, False),
        ([FIRST, EXTRA], "flooder", 0, False),
        ([FIRST, EXTRA, prefill("light", extra=False)], "light", 0, False),
        ([FIRST, EXTRA], "heavier", 0, False),
        ([FIRST, EXTRA], "light", 1, False),
        ([FIRST, prefill("flooder", extra=True, priority=2)], "light", 1, True),
        ([FIRST, EXTRA, prefill("third", extra=False, tokens=49)], "light", 0, True),
        ([FIRST, EXTRA, prefill("third", extra=False, tokens=50)], "light", 0, False),
        ([FIRST, prefill("flooder", extra=True, tokens=9999)], "light", 0, True),
    ],
    ids=[
        "extras are passed",
        "also when the first is done",
        "a first is not",
        "no prompt to pass",
        "not one's own",
        "one at a time",
        "a tenant that got more waits",
        "less urgent than the extras",
        "more urgent than the extras",
        "firsts within the window",
        "firsts fill the window",
        "however much is extra",
    ],
)
def test_a_tenants_first_passes_extras_of_tenants_that_got_more(
    prefills: list[Prefill], tenant: str, priority: int, expected: bool
) -> None:
    found = may_bypass(
        tenant,
        priority,
        prefills,
        counter=COUNTERS.__getitem__,
        is_within_window=lambda tokens: tokens < WINDOW_TOKENS,
    )
    assert found is expected


def test_a_prompt_counts_from_its_dispatch_to_its_first_byte_or_its_end() -> None:
    leases, prefills = Leases("router"), Prefills()
    opened = [leases.lease(Charge(uid, 100, 1)).open() for uid in ("w0", "w0", "w1")]
    for lease in opened:
        prefills.add(lease, "a", 0)

    assert [one.is_extra for one in prefills.on("w0")] == [False, True]
    assert [one.is_extra for one in prefills.on("w1")] == [False]
    opened[0].first_byte()
    assert [one.is_extra for one in prefills.on("w0")] == [True]
    opened[1].close()
    assert prefills.on("w0") == []
    again = leases.lease(Charge("w0", 100, 1)).open()
    prefills.add(again, "a", 0)
    assert [one.is_extra for one in prefills.on("w0")] == [False]


async def test_under_a_flood_a_light_tenant_is_at_the_worker_at_once_and_before_the_flooders_second(
    tmp_path: Path,
) -> None:
    keys = PlantedKeys()
    flooder, light = keys.add("flooder"), keys.add("light")
    patient = AdmissionSettings(room=CapacityLimits(least_window_seconds=2))
    stub = StubWorker(uid="w0", prefill_tokens_per_second=100)
    with running_stub(stub):
        async with running_router([stub], tmp_path, keys=keys.file, admission=patient) as router:
            # given: 150 tokens each, of which two fill the window of 200
            flood = [
                asyncio.create_task(
                    router.ask(f"{number}" * 150, headers={**bearer(flooder), "x-request-id": f"f{number}"})
                )
                for number in range(6)
            ]
            async with asyncio.timeout(10):
                # The first has been computed, and the third came from the queue: the flooder has got more.
                while len(stub.requests) < 3 or router.router.admission.held.requests != 3:
                    await asyncio.sleep(0.002)
            # when
            asked = [
                asyncio.create_task(
                    router.ask(letter * 150, headers={**bearer(light), "x-request-id": letter})
                )
                for letter in "xy"
            ]
            async with asyncio.timeout(10):
                while len(stub.requests) < 4 or router.router.admission.held.requests != 4:
                    await asyncio.sleep(0.002)
            sent = [(headers["x-request-id"], headers["x-warmfleet-priority"]) for headers in stub.requests]
            held = router.router.admission.held.requests
            for task in (*flood, *asked):
                task.cancel()
            await asyncio.gather(*flood, *asked, return_exceptions=True)

    # then: one of the light tenant's went, one step better; its other one waits like the flooder's
    assert [priority for _, priority in sent] == ["0", "0", "0", "-1"]
    assert sent[-1][0] in {"x", "y"}
    assert held == 4
