"""The operator's metrics."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from warmfleet_contracts import metrics as names
from warmfleet_operator.objects.kinds import Kind


class OperatorMetrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.reconciliations = Counter(
            names.OPERATOR_RECONCILIATIONS,
            "Reconciliations of a ModelDeployment",
            ["result"],
            registry=registry,
        )
        self.seconds = Histogram(
            names.OPERATOR_RECONCILE_SECONDS,
            "Duration of a reconciliation",
            buckets=names.OPERATOR_RECONCILE_BUCKETS,
            registry=registry,
        )
        self.writes = Counter(
            names.OPERATOR_WRITES, "Writes to the API server", ["kind", "verb"], registry=registry
        )
        self.errors = Counter(names.OPERATOR_ERRORS, "Requests that failed", ["error"], registry=registry)
        self._depth = Gauge(names.OPERATOR_QUEUE_DEPTH, "ModelDeployments in the queue", registry=registry)
        self._leader = Gauge(names.OPERATOR_LEADER, "1 while this replica may write", registry=registry)
        self._behind = Gauge(
            names.OPERATOR_WATCH_BEHIND_SECONDS,
            "Seconds for which a watch has been behind its list",
            ["kind"],
            registry=registry,
        )
        self._objects = Gauge(names.OPERATOR_OBJECTS, "Objects in the store", ["kind"], registry=registry)
        self._conditions = Gauge(
            names.OPERATOR_CONDITIONS,
            "ModelDeployments by condition and its status",
            ["condition", "status"],
            registry=registry,
        )

    def render(
        self,
        *,
        depth: int,
        leading: bool,
        behind: Mapping[Kind, float],
        objects: Mapping[str, int],
        conditions: Mapping[tuple[str, str], int],
    ) -> bytes:
        """The metrics page with these values for its gauges."""
        self._depth.set(depth)
        self._leader.set(leading)
        for kind, seconds in behind.items():
            self._behind.labels(kind.plural).set(seconds)
        for name, count in objects.items():
            self._objects.labels(name).set(count)
        self._conditions.clear()  # a pair that no deployment has any more disappears
        for (condition, status), count in conditions.items():
            self._conditions.labels(condition, status).set(count)
        return generate_latest(self._registry)
