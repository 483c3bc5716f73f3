"""A fleet at a low rate: a hot set that one cache does not hold adds a replica, nothing else does."""

import random
from collections.abc import Iterator

import pytest

from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.report import Report
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted
from warmfleet_simulator.scaling.operator_policy import OperatorAutoscaler
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

BLOCK = 32
REPLICA = ReplicaSettings(
    StepTimes(2 * 10**10, 2 * 10**8, 10**8, 10**5, knee_tokens=64), BLOCK, total_blocks=400, seats=16
)
"""A prompt of 1,000 tokens takes a fifth of a second to compute."""
PREFIX_BLOCKS = 30
ONE_AND_A_HALF = round(1.5 * REPLICA.total_blocks / PREFIX_BLOCKS)
"""So many prefixes need one and a half times a replica's KV cache."""
PER_SECOND = 0.5
POLICY = AutoscalingPolicy.of(AutoscalingSpec.model_validate({"maxReplicas": 4}))
"""The defaults, without a target for latencies."""


def requests(seconds: float, *, prefixes: int | None) -> Iterator[TraceRequest]:
    """Short questions, each behind one of `prefixes` that are all as popular; None: all are new."""
    draw, at, number = random.Random(0), 0.0, 0
    while at < seconds:
        head = FIRST_ANSWER_ID // 2 + number if prefixes is None else draw.randrange(prefixes)
        yield TraceRequest(
            arrival_seconds=at,
            prompt=(Segment(head, PREFIX_BLOCKS * BLOCK), Segment(1000 + number, draw.randint(1, 60))),
            output_tokens=draw.randint(1, 20),
            answer_id=FIRST_ANSWER_ID + number,
        )
        at += draw.expovariate(PER_SECOND)
        number += 1


class Watched:
    """The operator's policy; keeps what it was shown whenever it changed the number."""

    def __init__(self) -> None:
        self.policy = OperatorAutoscaler(POLICY)
        self.changes: list[tuple[int, int]] = []
        self.waiting_requests = 0

    def wanted(self, tick: Tick) -> Wanted:
        wanted = self.policy.wanted(tick)
        if wanted.replicas != tick.replicas.spec_replicas:
            self.changes.append((tick.replicas.spec_replicas, wanted.replicas))
            self.waiting_requests += sum(model.queued_requests for model in tick.totals.models.values())
            self.waiting_requests += sum(one.waiting_sequences for one in tick.totals.replicas)
        return wanted


def run(seconds: float, *, prefixes: int | None, replicas: int = 1) -> tuple[Watched, Report]:
    watched = Watched()
    report = simulate(
        requests(seconds, prefixes=prefixes),
        SimulationSettings(
            replica=REPLICA,
            replicas=replicas,
            routing="LowestCost",
            autoscaler=lambda: watched,
            start_delay_seconds=150.0,
        ),
    )
    return watched, report


def test_a_hot_set_of_one_and_a_half_caches_adds_one_replica_with_an_empty_queue_and_keeps_it() -> None:
    watched, report = run(1500.0, prefixes=ONE_AND_A_HALF)

    assert watched.changes == [(1, 2)]
    assert watched.waiting_requests == 0
    assert report.hit_rate > 0.85  # of one replica: 0.59


@pytest.mark.parametrize("prefixes", [None, ONE_AND_A_HALF // 3], ids=["unique prompts", "all fit"])
def test_prompts_that_no_larger_cache_spares_add_none_at_the_same_rate(prefixes: int | None) -> None:
    watched, _ = run(600.0, prefixes=prefixes)

    assert watched.changes == []


def test_blocks_that_an_own_shrink_lost_do_not_bring_the_replica_back() -> None:
    """Its hot set fits into the replica that is left, which has to compute half of it anew."""
    watched, report = run(2000.0, prefixes=ONE_AND_A_HALF // 2, replicas=2)

    assert watched.changes == [(2, 1)]
    assert report.missed_tokens["lost"] > PREFIX_BLOCKS * BLOCK
