"""A threshold on the mean utilization of the KV caches: KEDA's Prometheus scaler on vLLM's gauge.

Source: keda.sh/docs/2.20/scalers/prometheus with `metricType: Value` and the query
`avg(vllm:kv_cache_usage_perc)`, as in AIBrix's PodAutoscaler examples (0.5) and llm-d's KEDA guide (0.6).
That gauge counts blocks that sequences hold, and no evictable ones. KEDA makes an HPA of it (`hpa.by_value`).
"""

from warmfleet_simulator.autoscalers.hpa import Hpa, by_value
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted


class KvUtilization:
    """Keeps the mean utilization at `target_percent`."""

    def __init__(self, target_percent: float) -> None:
        self._target = target_percent
        self._hpa = Hpa()

    def wanted(self, tick: Tick) -> Wanted:
        """A number per sync period; none without a report of any replica."""
        state, now = tick.replicas, tick.now_seconds
        percents = [
            100 * replica.pinned_tokens / replica.capacity_tokens
            for replica in tick.totals.replicas
            if replica.capacity_tokens
        ]
        if not self._hpa.is_due(now) or not percents:
            return Wanted(state.spec_replicas)
        recommended = by_value(
            sum(percents) / len(percents),
            ready=state.ready,
            replicas=state.spec_replicas,
            target=self._target,
        )
        return Wanted(self._hpa.replicas(recommended, replicas=state.spec_replicas, now_seconds=now))
