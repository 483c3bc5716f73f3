"""Totals of a fleet: what a reader tolerates, what it refuses, and how exact percentiles are."""

import json
import math
from bisect import bisect_left
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.fleet_totals import (
    LATENCY_BOUNDS_MS,
    MAX_TOTALS_BYTES,
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    ModelTotals,
    ReplicaTotals,
    decode_totals,
    encode_totals,
)
from warmfleet_contracts.errors import ContractError

TOTALS = FleetTotals(
    router="life-1",
    uptime_seconds=12.5,
    models={
        "org/model": ModelTotals(
            queued_requests=2,
            queued_tokens=900,
            prompt_tokens=5_000,
            cached_tokens=4_000,
            misses=MissTokens(compulsory=600, capacity=400),
            first_token=LatencyHistogram((0, 3, 1)),
        )
    },
    replicas=(
        ReplicaTotals(
            uid="pod-1",
            epoch="epoch-1",
            ready=True,
            report_age_seconds=0.25,
            block_size_tokens=16,
            capacity_tokens=65_536,
            pinned_tokens=1_024,
        ),
        ReplicaTotals(uid="pod-2"),
    ),
)


def histogram_of(latencies_ms: list[float]) -> LatencyHistogram:
    counted = Counter(bisect_left(LATENCY_BOUNDS_MS, latency) for latency in latencies_ms)
    return LatencyHistogram(tuple(counted[bucket] for bucket in range(len(LATENCY_BOUNDS_MS) + 1)))


def with_replica(**fields: object) -> bytes:
    return json.dumps({"router": "life-1", "replicas": [{"uid": "pod-1", **fields}]}).encode()


def test_a_reader_gets_what_the_router_wrote() -> None:
    assert decode_totals(encode_totals(TOTALS)) == TOTALS


def test_unknown_fields_are_ignored_and_absent_ones_have_their_defaults() -> None:
    totals = decode_totals(b'{"router": "life-1", "new": {"a": 1}, "models": {"m": {"later": 5}}}')

    assert totals == FleetTotals(router="life-1", models={"m": ModelTotals()})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"router": "life-1"',
        b"\xff\xfe",
        b"[" * 100_000,
        with_replica(pinned_tokens=-1),
        with_replica(pinned_tokens=2**53 + 1),
        with_replica(pinned_tokens=1.5),
        with_replica(prefill_tokens_per_second=-0.1),
        with_replica(prefill_tokens_per_second=math.nan),
        with_replica(prefill_tokens_per_second=math.inf),
        with_replica(report_age_seconds=1e300),
        with_replica(ready="yes"),
        with_replica(epoch="e" * 10_000),
        b'{"router": "life-1", "models": {"m": {"misses": {"lost": -5}}}}',
        json.dumps({"router": "a", "models": {"m": {"first_token": {"counts": [0] * 1_000}}}}).encode(),
        json.dumps({"router": "a", "replicas": [{"uid": "pod"}] * 5_000}).encode(),
        b" " * (MAX_TOTALS_BYTES + 1),
    ],
)
def test_what_no_router_sends_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(ContractError):
        decode_totals(body)


@given(
    latencies=st.lists(st.floats(LATENCY_BOUNDS_MS[0], LATENCY_BOUNDS_MS[-1]), min_size=1, max_size=200),
    share=st.sampled_from((0.5, 0.9, 0.95, 0.99, 1.0)),
)
def test_a_percentile_is_within_12_percent_of_the_exact_one(latencies: list[float], share: float) -> None:
    exact = sorted(latencies)[math.ceil(share * len(latencies)) - 1]

    read = histogram_of(latencies).percentile_ms(share)

    assert read is not None
    assert exact / 1.1201 <= read <= exact * 1.1201


def test_a_percentile_of_no_latencies_is_unknown() -> None:
    assert LatencyHistogram().percentile_ms(0.9) is None
    assert LatencyHistogram((0, 0)).percentile_ms(0.9) is None


def test_a_percentile_beyond_the_last_bound_is_at_least_that_bound() -> None:
    assert histogram_of([1e9]).percentile_ms(0.5) == LATENCY_BOUNDS_MS[-1]


def test_totals_are_values() -> None:
    with pytest.raises(AttributeError):
        TOTALS.router = "another"  # type: ignore[misc]
    assert msgspec.structs.replace(TOTALS, router="another") != TOTALS
