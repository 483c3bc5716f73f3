"""The decision of one tick. Pure: the same arguments give the same decision, and time is one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmfleet_operator.scaling import outgrown, regret
from warmfleet_operator.scaling.decision import (
    DecisionInputs,
    LimitingRule,
    ReplicaState,
    ScalingDecision,
    ScalingReason,
)
from warmfleet_operator.scaling.demand import Ask
from warmfleet_operator.scaling.limits import forbids_shrink, forbids_zero, grown
from warmfleet_operator.scaling.measure import measure
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals

OUTGROWN_BY: Final = frozenset(
    {ScalingReason.DEMAND_ABOVE_SUPPLY, ScalingReason.LATENCY_ABOVE_TARGET, ScalingReason.CAPACITY_MISSES}
)
"""Growth for these reasons shows that the fleet was too small for its load."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of replicas and why."""

    replicas: int
    reason: ScalingReason
    limit: LimitingRule = LimitingRule.NONE


def decide(
    policy: AutoscalingPolicy,
    memory: ScalingMemory,
    signals: FleetSignals,
    replicas: ReplicaState,
    now_seconds: float,
) -> tuple[ScalingMemory, ScalingDecision]:
    """The wanted number of replicas, and what to remember for the next tick.

    Call it every few seconds. Inside the policy's bounds it shrinks by one replica at a time, and only a
    fleet that is whole, at rest and fully observed.
    """
    measured = measure(policy, memory, signals, replicas, now_seconds)
    choice = choose(policy, measured.inputs)
    # Of replicas without a place one goes first, by its own, and nothing has to be chosen.
    shrinks = choice.replicas < replicas.spec_replicas and not replicas.unschedulable
    memory = measured.memory
    if choice.replicas > replicas.spec_replicas and choice.reason in OUTGROWN_BY:
        memory = outgrown.noticed(policy, memory, measured.now, choice.replicas, now_seconds)
        if choice.reason is ScalingReason.CAPACITY_MISSES:
            memory = regret.grown(policy, memory, choice.replicas, now_seconds)
    return memory, ScalingDecision(
        at_seconds=now_seconds,
        from_replicas=replicas.spec_replicas,
        to_replicas=choice.replicas,
        reason=choice.reason,
        recommendations=_recommendations(measured.asks, replicas.spec_replicas),
        limit=choice.limit,
        inputs=measured.inputs,
        victim=measured.victim if shrinks else None,
    )


def choose(policy: AutoscalingPolicy, inputs: DecisionInputs) -> Choice:
    """The number of replicas that follows from recorded inputs."""
    replicas = inputs.spec_replicas
    if replicas < policy.min_replicas:
        return Choice(policy.min_replicas, ScalingReason.BELOW_MINIMUM)
    if replicas > policy.max_replicas:
        return Choice(policy.max_replicas, ScalingReason.ABOVE_MAXIMUM)
    if inputs.blind:
        return Choice(replicas, ScalingReason.STEADY, LimitingRule.SIGNALS_MISSING)
    asked_for = inputs.stable_growth
    if replicas == 0:
        # The size of what waits is an estimate, which one client can make large: no more than one each.
        asked_for = min(max(asked_for, 1), inputs.waiting_requests)
    if asked_for > replicas:
        return _grown(policy, inputs, asked_for)
    return _shrunk(policy, inputs)


def _grown(policy: AutoscalingPolicy, inputs: DecisionInputs, asked_for: int) -> Choice:
    number, rule = grown(policy, inputs, asked_for)
    if number == inputs.spec_replicas:
        return Choice(number, ScalingReason.STEADY, rule)
    return Choice(number, _growth_reason(inputs), rule)


def _shrunk(policy: AutoscalingPolicy, inputs: DecisionInputs) -> Choice:
    """One replica fewer, or as many as there are and the rule that keeps them."""
    replicas = inputs.spec_replicas
    if replicas == policy.min_replicas:
        idle = replicas == 1 and inputs.idle_seconds >= policy.idle_seconds
        lower = inputs.stable_need < replicas or idle
        limit = LimitingRule.MINIMUM if lower else LimitingRule.NONE
        return Choice(replicas, ScalingReason.STEADY, limit)
    if replicas == 1:
        rule, reason = forbids_zero(policy, inputs), ScalingReason.IDLE
    elif max(inputs.stable_need, inputs.stable_growth) >= replicas:
        unknown = inputs.missing_replicas or inputs.missing_routers
        limit = LimitingRule.SIGNALS_MISSING if unknown else LimitingRule.NONE
        return Choice(replicas, ScalingReason.STEADY, limit)
    else:
        rule, reason = forbids_shrink(policy, inputs), ScalingReason.DEMAND_BELOW_SUPPLY
    if rule is not LimitingRule.NONE:
        return Choice(replicas, ScalingReason.STEADY, rule)
    limit = LimitingRule.ONE_AT_A_TIME if inputs.stable_need < replicas - 1 else LimitingRule.NONE
    return Choice(replicas - 1, reason, limit)


def _growth_reason(inputs: DecisionInputs) -> ScalingReason:
    """The signal that asks for most now; of equal ones the first."""
    if inputs.spec_replicas == 0:
        return ScalingReason.REQUESTS_HELD
    latency = max(inputs.first_token_replicas, inputs.inter_token_replicas, inputs.late_load_replicas)
    most = max(inputs.demand_replicas, latency, inputs.misses_replicas)
    if inputs.demand_replicas == most:
        return ScalingReason.DEMAND_ABOVE_SUPPLY
    return ScalingReason.LATENCY_ABOVE_TARGET if latency == most else ScalingReason.CAPACITY_MISSES


def _recommendations(asks: Mapping[str, Ask], replicas: int) -> dict[str, int]:
    return {name: ask.recommendation(replicas) for name, ask in asks.items()}
