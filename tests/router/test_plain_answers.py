"""Plain answers, of which a router sees nothing before their end: what it learns of them from reports."""

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from warmfleet_router.admission.fair_queue import FairQueue
from warmfleet_router.admission.model_queue import OUTPUT_WEIGHT
from warmfleet_router.proxy import plain_answer
from warmfleet_router.proxy.retry_budget import RetryBudgetSettings
from warmfleet_router.routing.cost import PRIOR_SEAT_SECONDS
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.slow_reader import SlowReaders
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

PROMPT: Final = list(range(50))
TOKENS: Final = 4
DECODE_SECONDS: Final = 0.2
"""At least, however busy this machine is: the worker sleeps for so long after the first token."""


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(
        StubWorker(uid="w0", events=TOKENS, plain_token_seconds=DECODE_SECONDS / TOKENS)
    ) as running:
        yield running


async def first_byte_samples(router: RunningRouter) -> tuple[float, float]:
    """Number and sum, in seconds, of the histogram."""
    async with router.http.get(router.url + "/metrics") as response:
        text = await response.text()
    found = dict(
        re.findall(r"^warmfleet_router_first_byte_seconds_(count|sum){.*} (.*)$", text, re.MULTILINE)
    )
    return float(found.get("count", 0)), float(found.get("sum", 0))


async def asked(router: RunningRouter) -> dict[str, Any]:
    """The decision about one plain answer."""
    status, headers, _ = await router.ask(PROMPT)
    assert status == 200
    await router.until_idle()
    return (await router.get(f"/debug/decisions/{headers['x-request-id']}"))[1]


@pytest.mark.parametrize("frames", ["frames arrive", "no frame arrives"])
async def test_a_plain_answer_teaches_its_seat_time_and_its_time_to_first_token(
    stub: StubWorker, tmp_path: Path, frames: str
) -> None:
    async with running_router([stub], tmp_path) as router:
        stub.faults.silent_events = frames == "no frame arrives"
        decision = await asked(router)
        seat_seconds = router.router.routing.leases.seat_times.seconds("w0")
        count, seconds = await first_byte_samples(router)

    assert 0.95 * DECODE_SECONDS < seat_seconds <= decision["total_ms"] / 1e3 != PRIOR_SEAT_SECONDS
    assert decision["first_byte_after_ms"] <= decision["total_ms"] - 950 * DECODE_SECONDS
    assert (count, round(seconds, 3)) == (1, round(decision["first_byte_after_ms"] / 1e3, 3))


async def test_a_worker_that_does_not_report_plain_answers_teaches_nothing_wrong(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", contract_versions={1}, plain_token_seconds=0.02)) as stub:
        async with running_router([stub], tmp_path) as router:
            decision = await asked(router)
            seat_seconds = router.router.routing.leases.seat_times.seconds("w0")
            samples = await first_byte_samples(router)

    assert (decision["outcome"], decision["first_byte_after_ms"]) == ("completed", None)
    assert seat_seconds == PRIOR_SEAT_SECONDS
    assert samples == (0, 0)


async def test_a_plain_answer_is_not_in_prefill_once_it_has_a_token(stub: StubWorker, tmp_path: Path) -> None:
    stub.plain_token_seconds = 60
    async with running_router([stub], tmp_path) as router:
        dispatches = router.router.routing.leases.dispatches
        asking = asyncio.create_task(router.ask(PROMPT))
        await router.until(stub.arrived.is_set)

        await router.until(lambda: not dispatches.unreported("w0", {}).tokens, seconds=5)

        assert dispatches.open_count("w0") == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await router.until_idle()
        count, _ = await first_byte_samples(router)

    assert count == 1


async def test_a_client_that_leaves_a_plain_answer_pays_for_the_tokens_until_then(
    stub: StubWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: dict[str, float] = defaultdict(float)
    serve_at_once, correct = FairQueue.serve_at_once, FairQueue.correct

    def note_service(queue: FairQueue[Any], tenant: str, *, weight: float, cost: float) -> None:
        charged[tenant] += cost
        serve_at_once(queue, tenant, weight=weight, cost=cost)

    def note_correction(queue: FairQueue[Any], tenant: str, difference: float) -> None:
        charged[tenant] += difference
        correct(queue, tenant, difference)

    monkeypatch.setattr(FairQueue, "serve_at_once", note_service)
    monkeypatch.setattr(FairQueue, "correct", note_correction)
    stub.events, stub.plain_token_seconds = 10_000, 0.005
    async with running_router([stub], tmp_path) as router:
        asking = asyncio.create_task(router.ask(PROMPT, max_tokens=stub.events))

        def reported_tokens() -> int:
            load = router.router.workers.fleet.workers()[0].load
            return sum(answer.generated_tokens for those in load.plain_answers.values() for answer in those)

        await router.until(lambda: reported_tokens() >= 20)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await router.until_idle()

    (cost,) = charged.values()
    assert len(PROMPT) + OUTPUT_WEIGHT * 20 <= cost < len(PROMPT) + OUTPUT_WEIGHT * stub.events


async def test_a_client_that_reads_slowly_keeps_no_seat_and_teaches_no_seat_time(
    stub: StubWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = SlowReaders(monkeypatch)
    async with running_router([stub], tmp_path) as router:
        leases = router.router.routing.leases
        asking = asyncio.create_task(router.ask(PROMPT))
        await router.until(lambda: readers.waiting)

        is_open = leases.dispatches.open_count("w0")
        seat_seconds = leases.seat_times.seconds("w0")

        readers.read.set()
        status, _, _ = await asking
        await router.until_idle()
        at_the_end = leases.seat_times.seconds("w0")

    assert (status, is_open) == (200, 0)
    assert seat_seconds == at_the_end != PRIOR_SEAT_SECONDS


async def test_an_answer_that_is_too_large_is_computed_once_and_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a budget of retries, and answers larger than what is kept of one
    monkeypatch.setattr(plain_answer, "MAX_PLAIN_BODY_BYTES", 10)
    budget = RetryBudgetSettings(ratio=0.0, floor_retries=1)
    with running_stubs(3) as stubs:
        async with running_router(stubs, tmp_path, retry_budget=budget) as router:
            # When several are asked for
            answers = [await router.ask(PROMPT) for _ in range(8)]
            await router.until_idle()
            computed = sum(len(stub.requests) for stub in stubs)
            decision = (await router.get(f"/debug/decisions/{answers[0][1]['x-request-id']}"))[1]
            states = {router.router.workers.breakers.status(stub.uid, stub.uid).state for stub in stubs}

            # Then each was computed once, counts against no worker, and the budget is left for others
            stubs[0].faults.refuse_status = stubs[1].faults.refuse_status = 503
            monkeypatch.setattr(plain_answer, "MAX_PLAIN_BODY_BYTES", 2**20)
            retried = [await router.ask(PROMPT) for _ in range(3)]

    for status, headers, body in answers:
        error = json.loads(body)["error"]
        assert (status, error["code"], headers.get("retry-after")) == (422, "answer_too_large", None)
    assert (computed, states) == (8, {"closed"})
    assert (decision["outcome"], decision["output_tokens"]) == ("refused", stubs[0].events)
    assert 200 in {status for status, _, _ in retried}
