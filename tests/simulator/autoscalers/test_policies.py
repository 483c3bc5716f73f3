"""What each policy of another autoscaler wants, given what it reads; numbers computed by hand."""

from collections.abc import Sequence

import pytest

from warmfleet_contracts.cache.fleet_totals import FleetTotals, LatencyHistogram, ModelTotals, ReplicaTotals
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_router.economics.model_counts import LatencyCounts
from warmfleet_simulator.autoscalers.catalog import (
    AUTOSCALERS,
    check_setting,
    make_autoscaler,
    parse_setting,
    setting_text,
)
from warmfleet_simulator.autoscalers.predicted_latency import (
    PredictedLatency,
    desired_replicas,
    predicted_wait_ms,
)
from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.scaling.autoscaler import Autoscaler, Tick
from warmfleet_simulator.scaling.objective import Objective

OBJECTIVE = Objective(gpu="L4", model="m", first_token_milliseconds=1000, between_tokens_milliseconds=100)


def latencies(milliseconds: float, count: int) -> LatencyHistogram:
    counts = LatencyCounts()
    counts.add(milliseconds, count)
    return counts.histogram


def replica(number: int, **values: float) -> ReplicaTotals:
    return ReplicaTotals(uid=f"replica-{number}", ready=True, capacity_tokens=1000, seats=16, **values)  # type: ignore[arg-type]


def tick(
    now: float,
    replicas: Sequence[ReplicaTotals],
    *,
    model: ModelTotals | None = None,
    pending: int = 0,
    arrived: int = 0,
) -> Tick:
    return Tick(
        now_seconds=now,
        replicas=ReplicaState(spec_replicas=len(replicas) + pending, ready=len(replicas), pending=pending),
        ready_uids=[one.uid for one in replicas],
        totals=FleetTotals(router="r", models={"m": model or ModelTotals()}, replicas=tuple(replicas)),
        arrived_requests=arrived,
    )


def of(name: str, text: str) -> Autoscaler:
    setting = parse_setting(text)
    check_setting(name, setting)
    return make_autoscaler(name, setting, OBJECTIVE)


def test_requests_per_second_are_those_of_the_last_minute() -> None:
    policy = of("RequestsPerSecond", "0.5")
    fleet = [replica(number) for number in range(4)]
    wanted = [policy.wanted(tick(float(now), fleet, arrived=4 * now)).replicas for now in range(2, 120, 2)]
    # 4 requests per second at 0.5 per pod need eight: as soon as there is a rate.
    assert wanted[:8] == [4, 4, 4, 4, 4, 4, 4, 8]
    late = [policy.wanted(tick(float(now), fleet, arrived=480)).replicas for now in range(120, 700, 2)]
    assert [late.count(1) > 0, min(late[:120])] == [True, 4], "not within five minutes"


def test_kv_utilization_is_the_mean_of_the_replicas_that_report() -> None:
    policy = of("KvUtilization", "50")
    fleet = [replica(0, pinned_tokens=900), replica(1, pinned_tokens=700), ReplicaTotals(uid="replica-2")]
    assert policy.wanted(tick(2, fleet)).replicas == 5  # 80 % of 50 %, of three pods: 4.8
    assert policy.wanted(tick(4, [])).replicas == 0


def test_cached_blocks_that_no_sequence_holds_are_free() -> None:
    policy = of("KvUtilization", "50")
    fleet = [replica(number, pinned_tokens=500, evictable_tokens=500) for number in range(3)]
    assert policy.wanted(tick(2, fleet)).replicas == 3


def test_queued_requests_are_those_of_router_and_workers() -> None:
    fleet = [replica(number, waiting_sequences=4, running_sequences=3) for number in range(2)]
    model = ModelTotals(queued_requests=2)
    assert of("QueuedRequests", "2").wanted(tick(2, fleet, model=model)).replicas == 5
    assert of("RequestsInFlight", "4").wanted(tick(2, fleet, model=model)).replicas == 4


def test_a_policy_keeps_its_number_between_syncs() -> None:
    policy = of("QueuedRequests", "1")
    assert policy.wanted(tick(2, [replica(0)])).replicas == 1
    busy = [replica(0, waiting_sequences=3)]
    assert policy.wanted(tick(4, busy)).replicas == 1
    assert policy.wanted(tick(16, busy)).replicas == 3


@pytest.mark.parametrize(
    ("saturation", "replicas", "ready", "wanted"),
    [
        (0.55, 4, 4, 4),
        (0.50, 4, 4, 4),
        (0.40, 4, 4, 4),
        (1.10, 4, 4, 8),  # 4 + ceil(4 * (1.1 / 0.55 - 1))
        (1.10, 8, 4, 8),  # half of them start: 8 + ceil(8 * (1.1 * 0.5 / 0.55 - 1))
        (0.60, 4, 4, 5),
        (0.20, 4, 4, 2),  # 4 - floor(4 * (1 - 0.2 / 0.4))
        (0.00, 4, 4, 0),
    ],
)
def test_the_control_law_of_predicted_latency(
    saturation: float, replicas: int, ready: int, wanted: int
) -> None:
    assert desired_replicas(saturation, replicas=replicas, ready=ready, up=0.55, down=0.40) == wanted


def test_the_predicted_wait_is_what_is_queued_and_an_own_prompt() -> None:
    model = ModelTotals(
        prompt_tokens=10_000, cached_tokens=5000, queued_tokens=2000, first_token=latencies(50, 10)
    )
    fleet = [
        replica(number, queued_uncached_tokens=500, prefill_tokens_per_second=1000.0) for number in range(2)
    ]
    # Half of 2,000 and twice 500 tokens on two replicas; prompts of 1,000 of which half are cached.
    assert predicted_wait_ms(tick(2, fleet, model=model)) == pytest.approx(1000 + 500)
    assert predicted_wait_ms(tick(2, fleet)) == 0.0


def test_the_worse_of_both_latencies_counts_clamped_and_averaged() -> None:
    policy = PredictedLatency(OBJECTIVE, 55, 40)
    fleet = [replica(number) for number in range(2)]
    policy.wanted(tick(2, fleet))
    slow = ModelTotals(first_token=latencies(9000, 100))
    # 9 times the objective is clamped to 2. 0, 0, 2 average to 0.67: 2 + ceil(2 * (0.67 / 0.55 - 1)) are 3.
    assert policy.wanted(tick(16, fleet, model=slow)).replicas == 3
    policy = PredictedLatency(OBJECTIVE, 55, 40)
    policy.wanted(tick(2, fleet))
    slow = ModelTotals(mean_inter_token=latencies(190, 100))
    assert policy.wanted(tick(16, fleet, model=slow)).replicas == 3


def test_every_grid_has_five_settings_that_are_accepted() -> None:
    for name, other in AUTOSCALERS.items():
        grid = other.grid(0.37)
        assert len(set(grid)) == 5
        for setting in grid:
            check_setting(name, setting)
            assert parse_setting(setting_text(setting)) == setting


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KvUtilization", ""),
        ("KvUtilization", "0"),
        ("KvUtilization", "-5"),
        ("KvUtilization", "60/40"),
        ("KvUtilization", "nan"),
        ("KvUtilization", "1e400"),
        ("TokenSupply", "15/0"),
        ("PredictedLatency", "40/55"),
        ("Best", "1"),
    ],
)
def test_settings_that_no_policy_has_are_refused(name: str, text: str) -> None:
    with pytest.raises(SimulationError, match=name):
        check_setting(name, parse_setting(text))
