"""Token supply and demand against numbers computed by hand from the formulas of llm-d's WVA V2."""

import pytest

from warmfleet_contracts.cache.fleet_totals import FleetTotals, ModelTotals, ReplicaTotals
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_simulator.autoscalers.token_supply import (
    ComputeCapacity,
    Need,
    RequestShape,
    TokenSupply,
    estimated_tokens,
    needed,
    queued_demand,
)
from warmfleet_simulator.scaling.autoscaler import Tick

SHAPE = RequestShape(prompt_tokens=1000, answer_tokens=200, hit_ratio=0.25)


def replica(pinned: int, waiting: int = 0, *, capacity: int = 100_000) -> ReplicaTotals:
    return ReplicaTotals(
        uid="r",
        ready=True,
        capacity_tokens=capacity,
        pinned_tokens=pinned,
        waiting_sequences=waiting,
        seats=256,
    )


def test_before_any_queue_the_supply_is_estimated_from_settings() -> None:
    # N = min(8192 * 200 / 1200, 256) = 256 sequences of 1,000 + 100 tokens.
    assert estimated_tokens(SHAPE, batched_tokens=8192, seats=256) == 256 * 1100
    # With 64 batched tokens N is 10.67.
    assert estimated_tokens(SHAPE, batched_tokens=64, seats=256) == pytest.approx(64 / 6 * 1100)
    assert estimated_tokens(RequestShape(), batched_tokens=8192, seats=256) == 0


def test_a_replica_with_a_queue_shows_what_it_takes_and_others_remember() -> None:
    capacity = ComputeCapacity()
    assert capacity.tokens(replica(50_000, waiting=4), SHAPE) == 256 * 1100
    assert capacity.tokens(replica(50_000, waiting=5), SHAPE) == 50_000
    assert capacity.tokens(replica(30_000, waiting=9), SHAPE) == 30_000
    assert capacity.tokens(replica(10_000), SHAPE) == 40_000
    # Answers of another length have another history.
    assert capacity.tokens(replica(10_000), RequestShape(1000, 600)) != 40_000


def test_ten_samples_count() -> None:
    capacity = ComputeCapacity()
    for pinned in [90_000, *[20_000] * 10]:
        capacity.tokens(replica(pinned, waiting=5), SHAPE)
    assert capacity.tokens(replica(0), SHAPE) == 20_000


def need_of(*replicas: ReplicaTotals, queued_tokens: float = 0, pending: int = 0) -> Need:
    """Of replicas that are all ready, at 85 and 70 percent."""
    return needed(
        replicas,
        ComputeCapacity(),
        SHAPE,
        queued_demand_tokens=queued_tokens,
        ready=len(replicas),
        pending=pending,
        up_percent=85,
        down_percent=70,
    )


def test_demand_above_the_threshold_lacks_tokens() -> None:
    need = need_of(replica(70_000), replica(70_000, waiting=4))
    # k1 is 80,000; demand 140,000 + 4 * 1,000; over 0.85 that is 169,412, of which 160,000 are there.
    assert need.replica_tokens == 80_000
    assert need.required_tokens == pytest.approx(144_000 / 0.85 - 160_000)
    assert need.spare_tokens == 0
    assert need.replicas(2) == 3


def test_pending_replicas_are_supply_for_growth_and_not_for_a_shrink() -> None:
    busy = [replica(70_000)] * 2

    assert need_of(*busy, queued_tokens=20_000).replicas(2) == 3
    assert need_of(*busy, queued_tokens=20_000, pending=1).replicas(3) == 3


def test_a_shrink_keeps_what_demand_over_the_boundary_needs() -> None:
    need = need_of(*[replica(20_000)] * 4)
    # 320,000 - 80,000 / 0.7 are 205,714 spare: two replicas of 80,000.
    assert need.spare_tokens == pytest.approx(320_000 - 80_000 / 0.7)
    assert need.replicas(4) == 2
    assert Need(80_000, 0, 10_000_000).replicas(4) == 1
    assert Need(0, 5, 0).replicas(4) == 4


def test_requests_in_the_router_count_with_their_answers_and_without_hits() -> None:
    models = [ModelTotals(queued_requests=10, queued_tokens=12_000)]
    assert queued_demand(models, SHAPE) == 12_000 * 0.75 + 10 * 200
    # Fewer tokens than requests of the mean length: the larger estimate counts.
    models = [ModelTotals(queued_requests=10, queued_tokens=4000)]
    assert queued_demand(models, SHAPE) == 10_000 * 0.75 + 10 * 200


def test_it_analyses_once_a_minute_and_acts_through_its_window() -> None:
    def tick(now: float) -> Tick:
        return Tick(
            now,
            ReplicaState(spec_replicas=1, ready=1),
            ["r"],
            FleetTotals(router="r", replicas=(replica(100_000 if now > 10 else 60_000),)),
            0,
        )

    at_once, later = TokenSupply(85, 0), TokenSupply(85, 240)
    numbers = {now: (at_once.wanted(tick(now)), later.wanted(tick(now))) for now in range(2, 400, 2)}
    grown = [now for now, (number, _) in numbers.items() if number.replicas == 2]
    assert 62 <= grown[0] <= 78  # the second analysis sees it, the next sync sets it
    grown = [now for now, (_, number) in numbers.items() if number.replicas == 2]
    assert 300 <= grown[0] <= 320
