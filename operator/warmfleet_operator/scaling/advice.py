"""What a user is shown of decisions; where nothing acts on them, a number that stays until one does. Pure.

Every tick decides from the replicas that are set. Growth that no client carries out is decided anew at each
tick, and not at a tick without demand: so in mode Advisory what was asked for stays for the time after which
a replica that was really added could have been removed again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision, ScalingReason
from warmfleet_operator.scaling.entries import Entries, with_highest
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals

_REASONS: Final = {
    ScalingReason.DEMAND_ABOVE_SUPPLY: "demand above supply",
    ScalingReason.LATENCY_ABOVE_TARGET: "latency above target",
    ScalingReason.CAPACITY_MISSES: "prefixes evicted too early",
    ScalingReason.REQUESTS_HELD: "requests wait",
    ScalingReason.DEMAND_BELOW_SUPPLY: "demand below supply",
    ScalingReason.IDLE: "idle",
    ScalingReason.BELOW_MINIMUM: "below minReplicas",
    ScalingReason.ABOVE_MAXIMUM: "above maxReplicas",
    ScalingReason.STEADY: "steady",
    ScalingReason.REPLICAS_SET: "set by another client",
    ScalingReason.SHRINK_WITHDRAWN: "a shrink was withdrawn",
}
MAX_CHANGES: Final = 10
"""That an advice keeps."""


@dataclass(frozen=True, slots=True)
class Change:
    """The wanted number became another one."""

    wanted: int
    decision: ScalingDecision
    """With which it did."""
    reason: ScalingReason


@dataclass(frozen=True, slots=True)
class Advice:
    """The wanted number, and what is to be known about it."""

    wanted: int
    decision: ScalingDecision
    """With which the number became what it is."""
    reason: ScalingReason
    """Why it did."""
    latest: ScalingDecision
    """Of the last tick."""
    settled: bool = True
    """Whether it was observed for as long as growth must be asked for: a new leader first has to.

    A request for a fleet that sleeps needs no such time.
    """
    missing: str = ""
    """Which signals have been missing for too long; empty if none."""
    unschedulable: int = 0
    """Replicas that are set and get no place."""
    changes: tuple[Change, ...] = ()
    """The last ones of a settled number, oldest first, also where no status has shown it."""


@dataclass(frozen=True, slots=True)
class AdviceMemory:
    """What passes from one tick's advice to the next."""

    growth: Entries = ()
    missing_since_seconds: float | None = None


def advised(
    policy: AutoscalingPolicy,
    memory: AdviceMemory,
    *,
    before: Advice | None,
    decision: ScalingDecision,
    signals: FleetSignals,
    state: ReplicaState,
    acts: bool = False,
) -> tuple[AdviceMemory, Advice]:
    """The advice after one tick's decision; `before` is that of the tick before it.

    With `acts` every decision is carried out, so that none has to be kept.
    """
    now, growth = decision.at_seconds, memory.growth
    if acts or (growth and now < growth[-1][0]):
        growth = ()  # as each decision is carried out, or as the clock was set back
    number = decision.to_replicas if decision.to_replicas > state.spec_replicas else 0
    growth = with_highest(growth, now, number, policy.down_stabilization_seconds)
    wanted = max(decision.to_replicas, min(growth[0][1], policy.max_replicas))
    missing, since = missing_signals(signals), memory.missing_since_seconds
    since = None if not missing else now if since is None or since > now else since
    long_enough = since is not None and now - since >= policy.missing_grace_seconds
    newly_set = _newly_set(before, decision, state) if acts else None
    if before is not None and before.wanted == wanted and newly_set is None:
        reason, made_by = before.reason, before.decision
    else:
        reason, made_by = _reason(before, decision, state, acts=acts), decision
    settled = (acts and decision.from_replicas == 0) or (
        decision.inputs.observed_seconds >= policy.up_stabilization_seconds
    )
    changes = () if before is None else before.changes
    if before is not None and before.settled:
        known, set_number = before.wanted, newly_set
    elif settled and acts:
        # Perhaps it was set before this operator led; a status that has it leaves it out.
        known = decision.from_replicas
        set_number = known if state.set_by_another else None
    else:
        known, set_number = wanted, None
    if set_number is not None:
        known = set_number
        changes = (*changes, Change(known, made_by, ScalingReason.REPLICAS_SET))
    if known != wanted:
        changes = (*changes, Change(wanted, made_by, reason))
    advice = Advice(
        wanted=wanted,
        decision=made_by,
        reason=reason,
        latest=decision,
        settled=settled,
        missing=missing if long_enough else "",
        unschedulable=state.unschedulable,
        changes=changes[-MAX_CHANGES:],
    )
    return AdviceMemory(growth, since), advice


def _newly_set(before: Advice | None, decision: ScalingDecision, state: ReplicaState) -> int | None:
    """The number that another client has set since the tick before; None if none did.

    The state alone shows that of a number for as long as it is kept.
    """
    number = decision.from_replicas
    if before is None or not state.set_by_another or number in {before.wanted, before.latest.from_replicas}:
        return None
    return number


def _reason(
    before: Advice | None, decision: ScalingDecision, state: ReplicaState, *, acts: bool
) -> ScalingReason:
    """Why the wanted number became another one with this decision."""
    if decision.reason is not ScalingReason.STEADY:
        return decision.reason
    if before is None:
        return ScalingReason.REPLICAS_SET
    if before.latest.from_replicas == decision.from_replicas:
        if before.wanted > decision.to_replicas:
            return ScalingReason.DEMAND_BELOW_SUPPLY  # the time for which growth was advised has passed
        # What is not settled is not carried out, and so is no shrink.
        return ScalingReason.SHRINK_WITHDRAWN if before.settled else ScalingReason.REPLICAS_SET
    shrink = _withdrawn_shrink(before.changes)
    if acts and not state.set_by_another and shrink is not None and shrink.wanted == decision.from_replicas:
        return shrink.reason  # its write was under way
    return ScalingReason.REPLICAS_SET


def _withdrawn_shrink(changes: tuple[Change, ...]) -> Change | None:
    """The shrink that the last change withdrew; None if that did something else."""
    withdraws = len(changes) > 1 and changes[-1].reason is ScalingReason.SHRINK_WITHDRAWN
    return changes[-2] if withdraws else None


def missing_signals(signals: FleetSignals) -> str:
    """Which signals are missing, for people; empty if none is."""
    if not signals.routers:
        return "no router reports totals"
    # Without numbers: they change all the time, and each change would be a write of the status.
    if signals.missing_routers:
        return "a router does not report totals"
    return "a ready replica does not report" if signals.missing_replicas else ""


def in_words(reason: ScalingReason) -> str:
    """A reason for people."""
    return _REASONS[reason]


def because(decision: ScalingDecision) -> str:
    """Its reason, and the rule that limited it."""
    limit = f", limited by {decision.limit}" if decision.limit else ""
    return f"{in_words(decision.reason)}{limit}"


def asked_for(recommendations: Mapping[str, int]) -> str:
    """What each signal alone would do; empty if none asks for any."""
    return ", ".join([f"{number} by {signal}" for signal, number in recommendations.items() if number])


def explained(decision: ScalingDecision) -> str:
    """One sentence with the numbers that decided."""
    inputs = decision.inputs
    if decision.reason is ScalingReason.IDLE:
        return f"no request on any router for {inputs.idle_seconds} s"
    if decision.reason is ScalingReason.REQUESTS_HELD:
        waiting = inputs.waiting_requests
        text = f"{waiting} {'request waits' if waiting == 1 else 'requests wait'}, and no replica runs"
        return f"{text}; limited by {decision.limit.value}" if decision.limit else text
    parts = [
        f"{name} {_percent(demand, each * inputs.ready_replicas)}"
        for name, demand, each in (
            ("tokens", inputs.demand_tokens, inputs.supply_tokens),
            ("sequences", inputs.demand_sequences, inputs.supply_sequences),
            ("compute", inputs.demand_compute_permille, inputs.supply_compute_permille),
        )
    ]
    text = f"demand of what ready replicas take: {', '.join(parts)}"
    if inputs.first_token_ms:
        text += f"; {inputs.first_token_ms} ms to the first token are predicted"
    if inputs.inter_token_ms:
        text += f"; {inputs.inter_token_ms} ms between tokens are predicted"
    if inputs.late_load_replicas > inputs.spec_replicas:
        text += (
            f"; earlier a latency target was missed at {round(inputs.late_load_permille / 10)} % of compute"
        )
    if inputs.capacity_miss_percent:
        text += f"; {inputs.capacity_miss_percent} % of prompt tokens were evicted too early"
    return f"{text}; limited by {decision.limit.value}" if decision.limit else text


def _percent(demand: int, supply: int) -> str:
    return f"{round(100 * demand / supply)} %" if supply else "unknown"
