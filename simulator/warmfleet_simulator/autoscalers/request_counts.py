"""Thresholds on counts of requests per pod: KEDA's Prometheus scaler, `metricType: AverageValue`.

Queued requests, in workers and in the router, as llm-d's queue target and production-stack's trigger of
`vllm:num_requests_waiting` have it (keda.sh/docs/2.20/scalers/prometheus: total over threshold, rounded up).
Requests in flight, queued or running, as KubeAI (`targetRequests`) and llm-d's guide "Autoscaling Workloads
with KEDA and EPP Metrics" (`SIGNAL=inflight`) have it. Through an HPA (`hpa.by_average`).
"""

from collections.abc import Callable

from warmfleet_contracts.cache.fleet_totals import FleetTotals
from warmfleet_simulator.autoscalers.hpa import Hpa, by_average
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted


def queued_requests(totals: FleetTotals) -> int:
    """Requests that wait, in the router or for a place in a worker's batch."""
    in_router = sum(model.queued_requests + model.held_requests for model in totals.models.values())
    return in_router + sum(replica.waiting_sequences for replica in totals.replicas)


def requests_in_flight(totals: FleetTotals) -> int:
    """Requests that wait or run."""
    return queued_requests(totals) + sum(replica.running_sequences for replica in totals.replicas)


class RequestCount:
    """Keeps what `count` counts at `target` per pod."""

    def __init__(self, count: Callable[[FleetTotals], int], target: float) -> None:
        self._count = count
        self._target = target
        self._hpa = Hpa()

    def wanted(self, tick: Tick) -> Wanted:
        """A number per sync period."""
        state, now = tick.replicas, tick.now_seconds
        if not self._hpa.is_due(now):
            return Wanted(state.spec_replicas)
        recommended = by_average(self._count(tick.totals), replicas=state.spec_replicas, target=self._target)
        return Wanted(self._hpa.replicas(recommended, replicas=state.spec_replicas, now_seconds=now))
