"""How many workers a local fleet is to have: the operator's policy over its routers' totals. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_operator.scaling.advice import explained, in_words
from warmfleet_operator.scaling.decider import FleetDecider
from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision, ScalingReason
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.shrink import removal_order
from warmfleet_operator.scaling.signals import Reading, newest_reports

TICK_SECONDS: Final = 2.0
"""From one decision to the next, as the operator decides."""
ASLEEP_TICK_SECONDS: Final = 1.0
"""The same while the fleet sleeps."""


@dataclass(frozen=True, slots=True)
class LocalReplica:
    """A worker process, as far as its number is concerned."""

    name: str
    uid: str
    ready: bool
    leaving: bool
    fails_to_start: bool
    created_seconds: float


@dataclass(frozen=True, slots=True)
class Change:
    """Another number of workers."""

    from_replicas: int
    to_replicas: int
    reason: str
    """For people."""
    victims: tuple[LocalReplica, ...] = ()
    """The workers that go."""


class LocalAutoscaler:
    """Decides at every tick; its caller starts and ends processes.

    change = autoscaler.tick(await routers.readings(), replicas, time.monotonic())
    """

    def __init__(self, policy: AutoscalingPolicy, names: Sequence[str], *, routers: int) -> None:
        """`names`: by which requests ask for the model."""
        self._decider = FleetDecider(policy, tuple(names), acts=True)
        self._routers = routers

    def tick(
        self, readings: Sequence[Reading], replicas: Sequence[LocalReplica], now_seconds: float
    ) -> Change | None:
        """The change to make now; None if the number is right."""
        reports = newest_reports(readings)
        state = replica_state(replicas)
        ready = [replica.uid for replica in replicas if replica.ready and not replica.leaving]
        self._decider.tick(readings, reports, state, ready, routers=self._routers, now_seconds=now_seconds)
        decision = self._decider.due(state.spec_replicas)
        if decision is None:
            return None
        staying = [replica for replica in replicas if not replica.leaving]
        order = sorted(
            staying,
            key=lambda replica: (
                *removal_order(
                    replica.uid,
                    reports.get(replica.uid),
                    ready=replica.ready,
                    created_seconds=replica.created_seconds,
                    first=decision.victim,
                ),
                replica.name,
            ),
        )
        fewer = max(0, len(staying) - decision.to_replicas)
        return Change(
            len(staying),
            decision.to_replicas,
            _reason(decision),
            tuple(order[:fewer]),
        )


def _reason(decision: ScalingDecision) -> str:
    """For people."""
    if decision.reason is ScalingReason.REQUESTS_HELD:
        held = decision.inputs.waiting_requests
        limit = f"; limited by {decision.limit.value}" if decision.limit else ""
        return f"woken by {held} held request{'' if held == 1 else 's'}{limit}"
    return f"{in_words(decision.reason)} ({explained(decision)})"


def replica_state(replicas: Sequence[LocalReplica]) -> ReplicaState:
    """The replicas as the policy sees them.

    One that ended before it was ever ready stands for a pod without a place: it is no supply, a fleet that
    serves is not kept from anything by it, and it goes first.
    """
    staying = [replica for replica in replicas if not replica.leaving]
    ready = sum(replica.ready for replica in staying)
    return ReplicaState(
        spec_replicas=len(staying),
        ready=ready,
        pending=len(staying) - ready,
        unschedulable=sum(replica.fails_to_start for replica in staying),
        stopping=len(replicas) - len(staying),
    )
