"""The operator's scaling policy, as its controller calls it."""

from warmfleet_operator.scaling.decider import FleetDecider
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import Reading, newest_reports
from warmfleet_simulator.router.fleet import MODEL
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted


class OperatorAutoscaler:
    """Production signals, memory and decisions."""

    def __init__(self, policy: AutoscalingPolicy) -> None:
        self._decider = FleetDecider(policy, names=(MODEL,), acts=True)

    def wanted(self, tick: Tick) -> Wanted:
        """The decision of one tick."""
        readings = (Reading(tick.totals),)
        advice = self._decider.tick(
            readings,
            newest_reports(readings),
            tick.replicas,
            tick.ready_uids,
            routers=1,
            now_seconds=tick.now_seconds,
        )
        decision = advice.latest
        return Wanted(decision.to_replicas, decision.victim, decision)
