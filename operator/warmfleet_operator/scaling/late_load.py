"""The load at which a fleet missed a latency target: growth is asked for when that load comes again.

A percentile shows too high a load once requests have missed their target, and a pod takes minutes to start.
The threshold of demand is a share of what replicas compute; some targets are missed long before, as steps
with long contexts take longer at two thirds of it. So the load of such a miss is remembered, and asks for
growth the next time, before the percentile does.

Not every miss is one of the load: at a low one (`latency_guard.LOW_LOAD`) it has another cause. And the
percentile of a minute may be that of requests which waited for a replica that is ready by now, so the load is
that of the fewest replicas in it; a fleet that wakes had none. The median of
three samples at least, of ten at most, counts, so that an odd one changes nothing; each for twelve windows of
stabilization, an hour at most, so that what has been mended since does not ask for replicas for ever. Another
target knows nothing of the misses of the last one.
"""

from msgspec.structs import replace

from warmfleet_operator.scaling.demand import Ask, asked
from warmfleet_operator.scaling.entries import median_of, with_sample
from warmfleet_operator.scaling.latency_guard import LOW_LOAD
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.outgrown import HOLD_WINDOWS
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import TRAFFIC_SECONDS


def aimed(policy: AutoscalingPolicy, memory: ScalingMemory) -> ScalingMemory:
    """The memory without the misses of other targets than those of `policy`."""
    goals = (policy.first_token, policy.between_tokens)
    first, between = (goal.target_milliseconds if goal is not None else 0 for goal in goals)
    if memory.late_goals == (first, between):
        return memory
    return replace(memory, late_goals=(first, between), late_loads=())


def noticed(memory: ScalingMemory, load_permille: int, now_seconds: float) -> ScalingMemory:
    """The memory with a miss of a target at this load of the fleet, in 1/1000 of what one replica computes.

    A load is that of `TRAFFIC_SECONDS`: there is no more than one sample of that time.
    """
    ready = memory.fewest_ready[0][1]
    if not ready or load_permille < 1000 * LOW_LOAD * ready:
        return memory
    share = min(load_permille // ready, 1000)
    return replace(
        memory, late_loads=with_sample(memory.late_loads, now_seconds, share, pause_seconds=TRAFFIC_SECONDS)
    )


def share_permille(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> int:
    """At which load a target was missed, in 1/1000 of what a replica computes; 0: not known."""
    age_seconds = HOLD_WINDOWS * policy.down_stabilization_seconds
    return median_of(memory.late_loads, now_seconds, age_seconds) or 0


def asks(share: int, supply_permille: int, load_permille: float) -> Ask:
    """Replicas of which each has at most `share` of what it computes. What a shrink leaves is for others."""
    return Ask(asked(load_permille, share * supply_permille // 1000, 100, 100).growth)
