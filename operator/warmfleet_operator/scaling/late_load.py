"""The load at which a fleet missed a latency target: growth is asked for when that load comes again.

A percentile shows too high a load once requests have missed their target, and a pod takes minutes to start.
The threshold of demand is a share of what replicas compute; some targets are missed long before, as steps
with long contexts take longer at two thirds of it. So the load of such a miss is remembered, and asks for
growth the next time, before the percentile does. A miss at a low load (`latency_guard.LOW_LOAD`) has another
cause, and teaches nothing.

The median of the last samples counts, so that an odd one changes nothing; each for as long as a growth is
kept (`outgrown`), so that what has been mended since does not ask for replicas for ever.
"""

from statistics import median

from msgspec.structs import replace

from warmfleet_operator.scaling.demand import Ask, asked
from warmfleet_operator.scaling.memory import MAX_SAMPLES, ScalingMemory
from warmfleet_operator.scaling.outgrown import HOLD_WINDOWS
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import TRAFFIC_SECONDS


def noticed(memory: ScalingMemory, load_permille: int, ready: int, now_seconds: float) -> ScalingMemory:
    """The memory with a miss of a target at this load of so many replicas, in 1/1000 of one replica's time.

    A load is that of `TRAFFIC_SECONDS`: there is no more than one sample of that time.
    """
    samples = memory.late_loads
    if samples and now_seconds - samples[-1][0] < TRAFFIC_SECONDS:
        return memory
    return replace(memory, late_loads=(*samples, (now_seconds, load_permille // ready))[-MAX_SAMPLES:])


def limit_permille(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> int:
    """The load of one replica at which a target was missed; 0: none is known."""
    oldest = now_seconds - HOLD_WINDOWS * policy.down_stabilization_seconds
    known = [load_permille for at_seconds, load_permille in memory.late_loads if at_seconds >= oldest]
    return round(median(known)) if known else 0


def asks(limit: int, load_permille: float) -> Ask:
    """Replicas that keep the load below `limit`; a shrink asks other rules what it must leave."""
    return Ask(asked(load_permille, limit, 100, 100).growth)
