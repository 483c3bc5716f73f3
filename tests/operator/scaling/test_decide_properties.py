"""What no sequence of signals, however odd, makes the policy do."""

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.fleet_totals import (
    LATENCY_BOUNDS_MS,
    MAX_AMOUNT,
    LatencyHistogram,
    MissTokens,
    ReplicaTotals,
)
from warmfleet_contracts.cache.kv_events import MAX_COUNT
from warmfleet_operator.scaling.decide import OUTGROWN_BY, choose, decide
from warmfleet_operator.scaling.decision import (
    DecisionInputs,
    ReplicaState,
    ScalingDecision,
    ScalingReason,
)
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy, LatencyGoal
from warmfleet_operator.scaling.signals import FleetSignals, Traffic
from warmfleet_testing.resources.scaling_signals import POLICY

REASONS = {
    **dict.fromkeys(("tokens", "sequences", "compute"), ScalingReason.DEMAND_ABOVE_SUPPLY),
    **dict.fromkeys(("firstToken", "betweenTokens"), ScalingReason.LATENCY_ABOVE_TARGET),
    "capacityMisses": ScalingReason.CAPACITY_MISSES,
}
"""Of growth, by the signal that asks for most."""
TOKENS = st.sampled_from((0, 1, 100, 50_000, 100_000, 10**6, MAX_COUNT))
RATES = st.sampled_from((0.0, 5e-324, 0.5, 1000.0, MAX_AMOUNT))
SECONDS = st.sampled_from((0.0, 1.0, 5.0, 30.0))
HISTOGRAMS = st.lists(st.sampled_from((0, 0, 1, 50)), max_size=len(LATENCY_BOUNDS_MS) + 1).map(
    lambda counts: LatencyHistogram(tuple(counts))
)
GOALS = st.none() | st.builds(
    LatencyGoal, percentile=st.integers(50, 99), target_milliseconds=st.sampled_from((1, 500, 600_000))
)
POLICIES = st.builds(
    lambda least, more, **fields: replace(
        POLICY, min_replicas=least, max_replicas=max(1, least + more), **fields
    ),
    least=st.integers(0, 4),
    more=st.integers(0, 8),
    scale_up_percent=st.sampled_from((70, 85, 100)),
    scale_down_percent=st.sampled_from((5, 65)),
    first_token=GOALS,
    between_tokens=GOALS,
    capacity_miss_seconds=SECONDS,
    pause_after_shrink_seconds=SECONDS,
    up_stabilization_seconds=SECONDS,
    down_stabilization_seconds=SECONDS,
    down_period_seconds=st.sampled_from((1.0, 5.0)),
    panic_seconds=st.sampled_from((1.0, 10.0)),
    idle_seconds=st.sampled_from((1.0, 10.0)),
)
REPLICAS = st.builds(
    ReplicaTotals,
    uid=st.sampled_from(("a", "b", "c", "d", "e")),
    report_age_seconds=st.just(1.0),
    block_size_tokens=st.just(16),
    capacity_tokens=st.sampled_from((1, 100_000, 2**40)),
    pinned_tokens=TOKENS,
    evictable_tokens=TOKENS,
    queued_uncached_tokens=TOKENS,
    running_sequences=st.integers(0, 70),
    waiting_sequences=st.integers(0, 70),
    seats=st.sampled_from((0, 64)),
    prefill_tokens_per_second=RATES,
    decode_tokens_per_second=RATES,
    unique_blocks=st.integers(0, 1000),
    unique_value_tokens_per_second=RATES,
)
TRAFFIC = st.builds(
    Traffic,
    seconds=st.sampled_from((0.0, 2.0, 30.0)),
    prompt_tokens=TOKENS,
    cached_tokens=TOKENS,
    misses=st.builds(MissTokens, capacity=TOKENS, compulsory=TOKENS),
    requests=st.integers(0, 9),
    generated_tokens=TOKENS,
)
SIGNALS = st.builds(
    FleetSignals,
    replicas=st.lists(REPLICAS, max_size=5, unique_by=lambda item: item.uid).map(tuple),
    missing_replicas=st.sampled_from((0, 0, 0, 1)),
    missing_routers=st.sampled_from((0, 0, 0, 1)),
    routers=st.sampled_from((0, 1, 1, 2)),
    queued_requests=st.sampled_from((0, 0, 7)),
    queued_tokens=TOKENS,
    held_requests=st.sampled_from((0, 0, 7)),
    held_tokens=TOKENS,
    traffic=TRAFFIC,
    first_token=HISTOGRAMS,
    inter_token=HISTOGRAMS,
)


@st.composite
def states(draw: st.DrawFn, spec: int) -> ReplicaState:
    ready = draw(st.sampled_from((spec, spec, spec, max(0, spec - 1), spec + 1)))
    pending = max(0, spec - ready)
    return ReplicaState(
        spec_replicas=spec,
        ready=ready,
        pending=pending,
        unschedulable=draw(st.integers(0, pending)),
        in_rollout=draw(st.sampled_from((False, False, False, True))),
        stopping=draw(st.sampled_from((0, 0, 0, 1))),
    )


@settings(max_examples=150, deadline=None)
@given(policy=POLICIES, data=st.data())
def test_any_sequence_of_ticks_keeps_the_invariants(policy: AutoscalingPolicy, data: Any) -> None:
    """The number is obeyed at every tick: shrinks follow each other as fast as the policy lets them."""
    memory, now = ScalingMemory(), 0.0
    spec = data.draw(st.integers(policy.min_replicas, policy.max_replicas))
    shrunk_at: float | None = None
    for _ in range(data.draw(st.integers(1, 12))):
        now += data.draw(st.sampled_from((1.0, 2.0, 2.0, 10.0, 100.0, -50.0)))
        view, state = data.draw(SIGNALS), data.draw(states(spec))

        memory, decision = decide(policy, memory, view, state, now)

        assert policy.min_replicas <= decision.to_replicas <= policy.max_replicas
        if decision.to_replicas < spec:
            assert decision.to_replicas == spec - 1
            assert not state.in_rollout
            assert not state.stopping
            assert state.ready == spec - state.unschedulable
            assert view.complete
            assert shrunk_at is None or not 0 <= now - shrunk_at < policy.down_period_seconds
            shrunk_at = now
            if state.unschedulable:
                assert decision.victim is None
            else:
                assert decision.victim in {item.uid for item in view.replicas}
        else:
            assert decision.victim is None
        if decision.to_replicas > spec:
            assert not state.unschedulable
            assert decision.reason is not ScalingReason.STEADY
        if decision.reason in OUTGROWN_BY:
            most = max(decision.recommendations.values())
            asking = {name for name, number in decision.recommendations.items() if number == most}
            assert decision.reason in {REASONS[name] for name in asking}
        if not view.routers:
            assert decision.to_replicas == spec
        spec = decision.to_replicas


@settings(max_examples=100, deadline=None)
@given(policy=POLICIES, view=SIGNALS, data=st.data())
def test_recorded_inputs_reproduce_the_recorded_decision(
    policy: AutoscalingPolicy, view: FleetSignals, data: Any
) -> None:
    """From the whole tick as JSON, and from the whole numbers of a status alone."""
    memory = ScalingMemory()
    spec = data.draw(st.integers(0, policy.max_replicas))
    for tick in range(3):
        state = data.draw(states(spec))
        recorded = msgspec.json.encode((policy, memory, view, state, float(tick)))
        after, decision = decide(policy, memory, view, state, float(tick))

        read = msgspec.json.decode(
            recorded, type=tuple[AutoscalingPolicy, ScalingMemory, FleetSignals, ReplicaState, float]
        )
        text = {name: str(value) for name, value in msgspec.to_builtins(decision.inputs).items()}
        choice = choose(policy, DecisionInputs(**{name: int(value) for name, value in text.items()}))

        assert decide(*read) == (after, decision)
        assert msgspec.json.decode(msgspec.json.encode(decision), type=ScalingDecision) == decision
        assert (choice.replicas, choice.reason, choice.limit) == (
            decision.to_replicas,
            decision.reason,
            decision.limit,
        )
        memory = after


@settings(max_examples=50, deadline=None)
@given(policy=POLICIES, views=st.lists(SIGNALS, min_size=1, max_size=4))
def test_the_memory_stays_bounded(policy: AutoscalingPolicy, views: list[FleetSignals]) -> None:
    memory = ScalingMemory()
    for tick in range(200):
        spec = tick % policy.max_replicas
        state = ReplicaState(spec, spec)
        memory, _ = decide(policy, memory, views[tick % len(views)], state, float(tick))

    assert len(msgspec.json.encode(memory)) < 4096
