"""What passes from one tick to the next: changes of the number of replicas, activity, and gaps."""

from msgspec.structs import replace

from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_operator.scaling.entries import Entries, not_after, with_lowest
from warmfleet_operator.scaling.memory import MAX_GROWTHS, ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import LATENCY_SECONDS, FleetSignals


def ticked(
    policy: AutoscalingPolicy,
    memory: ScalingMemory,
    signals: FleetSignals,
    state: ReplicaState,
    now_seconds: float,
) -> ScalingMemory:
    """The memory at the beginning of a tick."""
    last = memory.last_seconds
    if last is None or not 0 <= now_seconds - last <= policy.gap_seconds:
        memory = _after_gap(memory, state, now_seconds)
    added = state.spec_replicas - memory.spec_replicas
    growths = tuple(item for item in memory.growths if item[0] > now_seconds - policy.up_period_seconds)
    if added > 0:
        growths = _with_growth(growths, (now_seconds, added))
    busy = memory.busy_seconds
    # What is not known may be a request.
    if busy is None or not signals.complete or _has_requests(signals):
        busy = now_seconds
    return replace(
        memory,
        last_seconds=now_seconds,
        spec_replicas=state.spec_replicas,
        growths=growths,
        changed_seconds=now_seconds if added else memory.changed_seconds,
        decreased_seconds=now_seconds if added < 0 else memory.decreased_seconds,
        shrunk_from=_shrunk_from(memory) if added < 0 else memory.shrunk_from,
        busy_seconds=busy,
        fewest_ready=with_lowest(memory.fewest_ready, now_seconds, state.ready, LATENCY_SECONDS),
    )


def idle_seconds(memory: ScalingMemory, now_seconds: float) -> int:
    """Since the last request anywhere; -1 while there is one."""
    busy = memory.busy_seconds
    return -1 if busy is None or now_seconds <= busy else int(now_seconds - busy)


def _with_growth(growths: Entries, newest: tuple[float, int]) -> Entries:
    """The growths with one more. Of too many the two oldest become one, as of the later one: none is lost."""
    if len(growths) < MAX_GROWTHS:
        return (*growths, newest)
    (_, oldest), (at_seconds, next_oldest), *others = (*growths, newest)
    return ((at_seconds, oldest + next_oldest), *others)


def _shrunk_from(memory: ScalingMemory) -> int:
    """With one more shrink: the number before it, or before the first of those that it follows at once."""
    follows = memory.changed_seconds is not None and memory.changed_seconds == memory.decreased_seconds
    return max(memory.spec_replicas, memory.shrunk_from) if follows else memory.spec_replicas


def _after_gap(memory: ScalingMemory, state: ReplicaState, now_seconds: float) -> ScalingMemory:
    """A first tick, a pause of the operator, or a clock that was set: nothing counts as observed.

    What was learnt about a replica stays.
    """
    first = memory.last_seconds is None
    return ScalingMemory(
        since_seconds=now_seconds,
        spec_replicas=state.spec_replicas,
        changed_seconds=None if first else now_seconds,
        decreased_seconds=None if memory.decreased_seconds is None else now_seconds,
        supply_samples=not_after(memory.supply_samples, now_seconds),
        supply_tokens=memory.supply_tokens,
        supply_sequences=memory.supply_sequences,
        compute_samples=memory.compute_samples,
        late_loads=not_after(memory.late_loads, now_seconds),
        late_goals=memory.late_goals,
        first_token_floor_ms=memory.first_token_floor_ms,
        inter_token_floor_ms=memory.inter_token_floor_ms,
    )


def _has_requests(signals: FleetSignals) -> bool:
    running = any(replica.running_sequences + replica.waiting_sequences for replica in signals.replicas)
    traffic = signals.traffic
    return bool(
        signals.waiting_requests
        or running
        or traffic.arrivals
        or traffic.prompt_tokens
        or traffic.generated_tokens
    )
