"""The operator's scaling policy, as its controller calls it."""

from warmfleet_operator.scaling.decide import decide
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import Reading, SignalHistory, merged, newest_reports
from warmfleet_simulator.router.fleet import MODEL
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted


class OperatorAutoscaler:
    """Production signals, memory and decisions."""

    def __init__(self, policy: AutoscalingPolicy) -> None:
        self._policy = policy
        self._history = SignalHistory()
        self._memory = ScalingMemory()

    def wanted(self, tick: Tick) -> Wanted:
        """The decision of one tick."""
        readings = (Reading(tick.totals),)
        self._history, signals = merged(
            readings,
            newest_reports(readings),
            self._history,
            names=(MODEL,),
            ready_uids=tick.ready_uids,
            routers=1,
            now_seconds=tick.now_seconds,
        )
        self._memory, decision = decide(self._policy, self._memory, signals, tick.replicas, tick.now_seconds)
        return Wanted(decision.to_replicas, decision.victim)
