"""`/internal/fleet/totals`: what it counts, how large it is, and that every report makes a valid answer."""

import asyncio
import math
import tracemalloc
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.fleet_totals import (
    FLEET_TOTALS_PATH,
    FleetTotals,
    MissTokens,
    ReplicaTotals,
    decode_totals,
    encode_totals,
)
from warmfleet_contracts.cache.kv_events import MAX_COUNT, Frame, Hello, LoadReport, StepTimeFit
from warmfleet_router.admission.admission import ModelWaits
from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount
from warmfleet_router.api.fleet_totals import model_totals, replica_totals
from warmfleet_router.discovery.base import Discovered, Endpoint
from warmfleet_router.economics.ghost_list import BLOCK_BYTES, GhostList
from warmfleet_router.economics.model_counts import ModelCount, QueueBound
from warmfleet_router.workers.event_stream import StreamCounts
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import NO_UNIQUE_VALUE, UniqueValue
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub, running_stubs

KIB = 1024
PREFIX = "".join(chr(ord("a") + number % 26) for number in range(640))


async def totals_of(router: RunningRouter) -> FleetTotals:
    async with router.http.get(router.url + FLEET_TOTALS_PATH) as response:
        assert response.status == 200
        return decode_totals(await response.read())


def status(number: int, load: LoadReport, *, age_seconds: float = 0.123, size: int = 16) -> WorkerStatus:
    uid = f"{number:08d}-9f4c-4a8e-b1d6-3c2f8e7a9b01"
    return WorkerStatus(
        endpoint=Endpoint(uid=uid, name="pod", url="http://10.0.0.1:8000"),
        hello=Hello(
            uid=uid,
            identity=b"identity-of-16by",
            block_size_tokens=size,
            window_tokens=0,
            epoch=f"{number:032x}",
            served_names=["m"],
            tokenizer_digest="t",
            max_model_length_tokens=100_000,
            proof=b"",
        ),
        ready=True,
        unready_reason="",
        precise=True,
        load=load,
        reported_at=-age_seconds if math.isfinite(age_seconds) else None,
        resident_blocks=0,
        counts=StreamCounts(),
        clock=lambda: 0.0,
    )


FULL_LOAD = LoadReport(
    running_sequences=256,
    waiting_sequences=1_234,
    max_running_sequences=256,
    queued_uncached_tokens=9_876_543,
    context_tokens=12_345_678,
    total_blocks=1_234_567,
    pinned_blocks=1_034_567,
    cached_blocks=200_000,
    draining=True,
    step_time=StepTimeFit(
        base_seconds=0.0123456789,
        per_prefill_token_seconds=1.23456789e-5,
        per_decode_sequence_seconds=1.23456789e-4,
        per_context_token_seconds=1.23456789e-8,
        samples=1_000,
    ),
)


def nothing_unique(_: str) -> UniqueValue:
    return NO_UNIQUE_VALUE


def busy_model() -> ModelCount:
    """Weeks of traffic: every bucket filled, every count long."""
    count = ModelCount()
    count.answered(
        9_876_543_210,
        8_765_432_109,
        MissTokens(
            compulsory=1_234_567_890,
            placement=123_456_789,
            capacity=123_456_789,
            lost=12_345_678,
            rollout=12_345_678,
        ),
    )
    for bound in get_args(QueueBound):
        count.refused_by(bound, 1_234_567_890, is_retry=False)
    for step in range(60):
        count.first_token.add(20 * 1.12**step, 123_456)
    for step in range(30):
        count.inter_token.add(5 * 1.12**step, 12_345_678)
    return count


@pytest.mark.parametrize(("replicas", "models"), [(100, 10), (1_000, 100)])
def test_the_answer_has_at_most_64_kib_per_100_replicas(replicas: int, models: int) -> None:
    totals = FleetTotals(
        router="warmfleet-router-6b7f9c5d84-x2v9k-0123abcd",
        uptime_seconds=1_234_567.891,
        models=model_totals(
            {
                f"organisation/model-of-70b-{number}": ModelWaits(4_096, 12_345_678, 1_024, 3_456_789)
                for number in range(models)
            },
            {f"organisation/model-of-70b-{number}": busy_model() for number in range(models)},
        ),
        replicas=replica_totals(
            (status(number, FULL_LOAD) for number in range(replicas)),
            lambda _: UniqueValue(1_034_567, 123_456.789),
        ),
    )

    body = encode_totals(totals)

    assert len(body) <= 64 * KIB * replicas // 100
    assert decode_totals(body) == totals


def test_what_is_remembered_of_1000_replicas_is_bounded() -> None:
    """A million blocks stored, then evicted, with a list of 100,000."""

    def hashes(replica: int) -> list[bytes]:
        mixed = ((replica * 1_000 + number) * 0x9E3779B97F4A7C15F39CC0605CEDC835 for number in range(1_000))
        return [(value % 2**128).to_bytes(16, "little") for value in mixed]

    tracemalloc.start()
    try:
        ghosts = GhostList(100_000)
        for replica in range(1_000):
            ghosts.frame_arrived(f"replica-{replica}", Frame(epoch="e", seq=1, stored=hashes(replica)))
        for replica in range(1_000):
            ghosts.frame_arrived(f"replica-{replica}", Frame(epoch="e", seq=2, removed=hashes(replica)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(ghosts) <= 100_000
    assert held_bytes <= 100_000 * BLOCK_BYTES
    assert ghosts.cause_of_loss(BlockHash(hashes(999)[-1])) is not None


whole = st.integers(0, MAX_COUNT)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((0.0, -1.0, 1e-300, 1e300))


@given(
    load=st.builds(
        LoadReport,
        running_sequences=whole,
        waiting_sequences=whole,
        max_running_sequences=whole,
        queued_uncached_tokens=whole,
        context_tokens=whole,
        total_blocks=whole,
        pinned_blocks=whole,
        cached_blocks=whole,
        step_time=st.builds(
            StepTimeFit,
            base_seconds=numbers,
            per_prefill_token_seconds=numbers,
            per_decode_sequence_seconds=numbers,
            per_context_token_seconds=numbers,
            samples=st.integers(0, 100),
        ),
    ),
    age_seconds=st.floats(0, 1e9) | st.just(float("inf")),
    size=st.integers(1, 2**60),
)
def test_any_report_of_a_worker_makes_an_answer_that_the_operator_takes(
    load: LoadReport, age_seconds: float, size: int
) -> None:
    worker = status(1, load, age_seconds=age_seconds, size=size)

    totals = FleetTotals(
        router="life", replicas=replica_totals([worker], lambda _: UniqueValue(2**53, 1e300))
    )

    assert decode_totals(encode_totals(totals)) == totals


def test_counts_beyond_the_largest_that_the_operator_takes_are_reported_as_that() -> None:
    count, honest = ModelCount(), busy_model()
    count.answered(2**54, 2**54, MissTokens(compulsory=MAX_COUNT))
    for latencies in (count.first_token, count.inter_token, count.mean_inter_token):
        for _ in range(2):
            latencies.add(5.0, MAX_COUNT)
    for bound in get_args(QueueBound):
        count.refused_by(bound, MAX_COUNT, is_retry=False)
        count.refused_by(bound, MAX_COUNT, is_retry=False)

    totals = FleetTotals(router="life", models=model_totals({}, {"m": count, "honest": honest}))

    assert decode_totals(encode_totals(totals)) == totals
    assert max(totals.models["m"].inter_token.counts) == MAX_COUNT


def test_more_refusals_than_the_operator_takes_are_reported_as_that() -> None:
    count = ModelCount()
    count._refused["wait"] = count._refused_retries = MAX_COUNT
    count.refused_by("wait", 1, is_retry=False)
    count.refused_by("wait", 1, is_retry=True)

    assert (count.refused.wait, count.refused.retries) == (MAX_COUNT, MAX_COUNT)


def test_of_a_worker_that_has_not_reported_only_its_name_is_known() -> None:
    (replica,) = replica_totals([status(1, LoadReport(), age_seconds=float("inf"))], nothing_unique)

    assert replica == ReplicaTotals(uid=replica.uid, epoch=replica.epoch)
    assert replica.report_age_seconds is None


def test_rates_are_those_of_the_workers_own_measurement() -> None:
    step_time = StepTimeFit(
        base_seconds=0.010,
        per_prefill_token_seconds=0.0001,
        per_decode_sequence_seconds=0.001,
        per_context_token_seconds=0.00001,
        samples=50,
    )
    load = LoadReport(max_running_sequences=10, running_sequences=2, context_tokens=200, step_time=step_time)

    measured, unmeasured = replica_totals(
        [status(1, load), status(2, LoadReport(max_running_sequences=10))], nothing_unique
    )

    assert measured.prefill_tokens_per_second == 10_000.0
    # 10 sequences in 10 ms + 10 x (1 ms + 100 tokens of context x 0.01 ms)
    assert measured.decode_tokens_per_second == pytest.approx(10 / 0.030, abs=0.1)
    assert (unmeasured.prefill_tokens_per_second, unmeasured.decode_tokens_per_second) == (0.0, 0.0)


async def test_tokens_and_their_causes_are_counted_per_model(tmp_path: Path) -> None:
    with running_stubs(2) as stubs:
        async with running_router(stubs, tmp_path, policy="RoundRobin") as router:
            for _ in range(3):
                await router.ask(PREFIX)
                await router.until_settled(stubs)
            totals = await totals_of(router)

    model = totals.models["stub"]
    assert (model.prompt_tokens, model.cached_tokens) == (3 * 640, 624)
    # The first is new. The second goes to the other worker, although the first one holds it. The third hits.
    assert model.misses == MissTokens(compulsory=640 + 16 + 16, placement=624)
    assert {replica.uid for replica in totals.replicas} == {"w0", "w1"}
    assert all(replica.ready and replica.capacity_tokens == 4096 * 16 for replica in totals.replicas)
    assert sum(model.first_token.counts) == 3


async def test_a_worker_that_left_lost_its_blocks(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w1")) as staying, running_stub(StubWorker(uid="w0")) as leaving:
        async with running_router([leaving, staying], tmp_path, policy="RoundRobin") as router:
            await router.ask(PREFIX)
            await router.until_settled([leaving, staying])
            decisions = router.router.routing.decisions
            served = decisions.newest(1)[0].attempts[0].choice.uid
            fleet = router.router.workers.fleet
            endpoints = tuple(view.endpoint for view in fleet.workers() if view.endpoint.uid != served)
            await fleet.reconcile(Discovered(endpoints))
            await router.ask(PREFIX)
            totals = await totals_of(router)

    assert totals.models["stub"].misses == MissTokens(compulsory=640 + 16, lost=624)


async def test_time_between_tokens_is_that_of_the_worker(tmp_path: Path) -> None:
    stub = StubWorker(uid="w0", events=20, event_seconds=0.02)
    stub.plain_token_seconds = 0.02
    with running_stub(stub):
        async with running_router([stub], tmp_path) as router:
            await router.ask("one", stream=True, max_tokens=20)
            await router.ask("two", max_tokens=20)
            totals = await totals_of(router)

    model = totals.models["stub"]
    assert sum(model.first_token.counts) == 2
    # 20 tokens each: 19 gaps of the stream, 19 times the mean of the plain answer.
    assert sum(model.inter_token.counts) == 2 * 19
    median_ms = model.inter_token.percentile_ms(0.5)
    assert median_ms is not None
    assert median_ms >= 17.0
    assert sum(model.mean_inter_token.counts) == 2
    mean_ms = model.mean_inter_token.percentile_ms(0.5)
    assert mean_ms is not None
    assert mean_ms >= 17.0


async def test_what_waits_is_counted_in_requests_and_tokens(tmp_path: Path) -> None:
    stub = StubWorker(uid="w0", max_running_sequences=1)
    with running_stub(stub):
        async with running_router([stub], tmp_path) as router:
            stub.faults.hold_headers = True
            asking = [asyncio.create_task(router.ask("x" * 100)) for _ in range(4)]
            await router.until(lambda: router.router.admission.held.requests == 3)
            waiting = (await totals_of(router)).models["stub"]
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await router.until(lambda: router.router.admission.held.requests == 0)
            afterwards = (await totals_of(router)).models["stub"]

    assert (waiting.queued_requests, waiting.queued_tokens) == (3, 300)
    assert (afterwards.queued_requests, afterwards.queued_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("header", "value", "is_retry"),
    [
        ("x-stainless-retry-count", "0", False),
        ("x-stainless-retry-count", "2", True),
        ("x-envoy-attempt-count", "1", False),
        ("x-envoy-attempt-count", "2", True),
        ("x-stainless-retry-count", "-1", False),
        ("x-stainless-retry-count", "often", False),
        ("x-stainless-retry-count", "9" * 400, False),
    ],
)
async def test_a_request_that_the_full_queue_refuses_counts_once_however_often_it_is_sent(
    header: str, value: str, is_retry: bool, tmp_path: Path
) -> None:
    settings = AdmissionSettings(max_held=Amount(1, 10**8, 10**7))
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            stub.faults.hold_headers = True
            asking = [asyncio.create_task(router.ask("x" * 100)) for _ in range(2)]
            await router.until(lambda: router.router.admission.held.requests == 1)
            status, _, _ = await router.ask("x" * 4000, headers={header: value})
            refused = (await totals_of(router)).models["stub"].refused
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    assert status == 429
    assert (refused.queue_full, refused.retries, refused.unmet) == (not is_retry, is_retry, not is_retry)
    # About a fourth of the body's bytes: it was refused before it was encoded.
    assert refused.tokens == 0 if is_retry else 1000 <= refused.tokens <= 1050


async def test_counts_of_a_model_go_with_it(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0")) as stub:
        async with running_router([stub], tmp_path) as router:
            await router.ask("hello")
            before = await totals_of(router)
            await router.router.workers.fleet.reconcile(Discovered(()))
            await router.until_idle()
            await router.router.workers.fleet.reconcile(Discovered(()))
            after = await totals_of(router)

    assert "stub" in before.models
    assert after.models == {}
    assert after.router == before.router
    assert after.uptime_seconds >= before.uptime_seconds
