"""Requests per second and pod: an HPA with the metric of an ingress or of Prometheus Adapter (type Pods).

Source: kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale-walkthrough, "Autoscaling on
multiple metrics": `packets-per-second` of each pod, `averageValue: 1k`. The rate is that of the last minute,
as in the Prometheus Adapter's walkthrough (`rate(...[1m])`), of requests that arrived.
"""

from typing import Final

from warmfleet_simulator.autoscalers.hpa import Hpa, by_pods
from warmfleet_simulator.autoscalers.lookback import Lookback
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted

RATE_SECONDS: Final = 60.0


class RequestsPerSecond:
    """Keeps every pod at `target` requests per second."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._hpa = Hpa()
        self._arrived = Lookback[int](RATE_SECONDS)

    def wanted(self, tick: Tick) -> Wanted:
        """A number per sync period."""
        state, now = tick.replicas, tick.now_seconds
        earlier = self._arrived.add(now, tick.arrived_requests)
        if not self._hpa.is_due(now) or not earlier.seconds or not state.ready:
            return Wanted(state.spec_replicas)
        each = (tick.arrived_requests - earlier.value) / earlier.seconds / state.ready
        recommended = by_pods(
            [each] * state.ready,
            unready=state.pending,
            missing=0,
            replicas=state.spec_replicas,
            target=self._target,
        )
        return Wanted(self._hpa.replicas(recommended, replicas=state.spec_replicas, now_seconds=now))
