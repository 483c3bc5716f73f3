"""What keeps the number of replicas from the one that signals ask for: bounds, rates, unsafe moments."""

from typing import Final

from warmfleet_operator.scaling.chance import MOST_MEAN_SECONDS
from warmfleet_operator.scaling.decision import DecisionInputs, LimitingRule
from warmfleet_operator.scaling.entries import Entries
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.shrink import SAFETY

WATCHED_WINDOWS: Final = 2
"""Of stabilization, for which a load is watched before the first shrink: those by whose moments
`experience.late_percent` bounds the mean. More cost a fleet of too many replicas, and saved no burst."""


def growth_limit(policy: AutoscalingPolicy, growths: Entries, replicas: int) -> int:
    """Most replicas by the rate of growth: what this period added already counts against it."""
    before = max(0, replicas - sum(added for _, added in growths))
    return before + max(policy.up_replicas, -(-before * policy.up_percent // 100))


def grown(policy: AutoscalingPolicy, inputs: DecisionInputs, wanted: int) -> tuple[int, LimitingRule]:
    """At most `wanted` replicas, and the rule that allows no more."""
    replicas = inputs.spec_replicas
    if inputs.unschedulable_replicas:
        return replicas, LimitingRule.CAPACITY_PENDING
    number, rule = wanted, LimitingRule.NONE
    # What waits for a fleet that sleeps gets all that it needs at once.
    if replicas and number > inputs.growth_limit:
        number, rule = max(inputs.growth_limit, replicas), LimitingRule.RATE
    if number > policy.max_replicas:
        number, rule = policy.max_replicas, LimitingRule.MAXIMUM
    return number, rule


def forbids_shrink(policy: AutoscalingPolicy, inputs: DecisionInputs) -> LimitingRule:
    """Why no replica of ours may go now; NONE if one may."""
    unsafe = _first_unsafe(policy, inputs)
    return unsafe if _is_watched(policy, inputs) else unsafe or LimitingRule.STABILIZATION


def _is_watched(policy: AutoscalingPolicy, inputs: DecisionInputs) -> bool:
    """Whether enough was seen of the load: what a calm beginning does not need, the first burst may.

    Of a fleet without requests nothing more will be seen, nor of a load after the longest time of a mean.
    """
    window_seconds = policy.down_stabilization_seconds
    if inputs.observed_seconds < window_seconds:
        return False
    is_idle = inputs.idle_seconds >= window_seconds
    return is_idle or inputs.watched_seconds >= min(WATCHED_WINDOWS * window_seconds, MOST_MEAN_SECONDS)


def forbids_zero(policy: AutoscalingPolicy, inputs: DecisionInputs) -> LimitingRule:
    """Why the last replica may not go now; NONE if it may.

    Its cache does not keep it: the time without requests is what the user has set for it.
    """
    if inputs.idle_seconds < policy.idle_seconds:
        return LimitingRule.STABILIZATION
    rule = _first_unsafe(policy, inputs)
    return LimitingRule.NONE if rule is LimitingRule.CACHE_VALUE else rule


def _first_unsafe(policy: AutoscalingPolicy, inputs: DecisionInputs) -> LimitingRule:
    """What makes any shrink unsafe now, the most telling first.

    A replica that gets no place does not have to become ready first: it is the one that goes, without loss.
    """
    missing = inputs.missing_replicas or inputs.missing_routers or not inputs.known_routers
    placed = inputs.spec_replicas - inputs.unschedulable_replicas
    unready = inputs.pending_replicas > inputs.unschedulable_replicas or inputs.ready_replicas != placed
    changing = 0 <= inputs.changed_seconds < policy.down_period_seconds
    loss_ms = 0 if inputs.unschedulable_replicas else inputs.victim_loss_ms
    saved_ms = 1000 * policy.payback_seconds
    rules = (
        (missing, LimitingRule.SIGNALS_MISSING),
        (inputs.rollouts, LimitingRule.ROLLOUT),
        (unready, LimitingRule.NOT_READY),
        (inputs.stopping_replicas, LimitingRule.STOPPING),
        (inputs.panic, LimitingRule.PANIC),
        # What goes now would be asked for again.
        (inputs.rising, LimitingRule.STABILIZATION),
        (changing, LimitingRule.PERIOD),
        (SAFETY * loss_ms > saved_ms, LimitingRule.CACHE_VALUE),
    )
    return next((rule for holds, rule in rules if holds), LimitingRule.NONE)
