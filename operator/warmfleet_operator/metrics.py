"""The operator's metrics."""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from warmfleet_contracts import metrics as names
from warmfleet_operator.objects.deployment_state import DeploymentState
from warmfleet_operator.objects.kinds import Kind
from warmfleet_operator.scaling.advice import Advice

MAX_DEPLOYMENTS: Final = 1000
"""ModelDeployments with figures of their own: the first ones by namespace and name. Sums count all."""


class OperatorMetrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.reconciliations = Counter(
            names.OPERATOR_RECONCILIATIONS,
            "Reconciliations of a ModelDeployment, by result.",
            ["result"],
            registry=registry,
        )
        self.seconds = Histogram(
            names.OPERATOR_RECONCILE_SECONDS,
            "Seconds that a reconciliation took.",
            buckets=names.OPERATOR_RECONCILE_BUCKETS,
            registry=registry,
        )
        self.writes = Counter(
            names.OPERATOR_WRITES,
            "Writes that the API server accepted, by kind of object and verb.",
            ["kind", "verb"],
            registry=registry,
        )
        self.errors = Counter(
            names.OPERATOR_ERRORS,
            "Failures of reconciliations and of their writes, by kind.",
            ["error"],
            registry=registry,
        )
        self._depth = Gauge(
            names.OPERATOR_QUEUE_DEPTH,
            "ModelDeployments to reconcile, those that are due later included.",
            registry=registry,
        )
        self._leader = Gauge(
            names.OPERATOR_LEADER, "1 while this replica may write, otherwise 0.", registry=registry
        )
        self._behind = Gauge(
            names.OPERATOR_WATCH_BEHIND_SECONDS,
            "Seconds for which a watch has missed something that a list of the same objects held.",
            ["kind"],
            registry=registry,
        )
        self._objects = Gauge(
            names.OPERATOR_OBJECTS, "Objects that the operator knows, by kind.", ["kind"], registry=registry
        )
        self._conditions = Gauge(
            names.OPERATOR_CONDITIONS,
            "ModelDeployments by condition and its status.",
            ["condition", "status"],
            registry=registry,
        )
        self.scaling_seconds = Histogram(
            names.OPERATOR_SCALING_TICK_SECONDS,
            "Seconds that a decision about all fleets with autoscaling took, without the reading of routers.",
            buckets=names.OPERATOR_SCALING_TICK_BUCKETS,
            registry=registry,
        )
        self.shrink_victims = Counter(
            names.OPERATOR_SHRINK_VICTIMS,
            "Pods that went after a number of replicas was lowered: those marked to go, or others.",
            ["choice"],
            registry=registry,
        )
        self.handover_seconds = Histogram(
            names.OPERATOR_HANDOVER_SECONDS,
            "Seconds that routers took to move the prefixes of replicas that were about to go.",
            buckets=names.OPERATOR_HANDOVER_BUCKETS,
            registry=registry,
        )
        for choice in ("ours", "other"):
            self.shrink_victims.labels(choice)  # from 0, so that the first one is an increase
        self._of_each = {
            name: Gauge(name, text, ["namespace", "name", *labels], registry=registry)
            for name, text, labels in (
                (
                    names.OPERATOR_DEPLOYMENT_CONDITION,
                    "1 for the status that each condition of a ModelDeployment has now.",
                    ["condition", "status"],
                ),
                (
                    names.OPERATOR_DEPLOYMENT_WANTED,
                    "Replicas that a ModelDeployment wants; 0 while it is suspended or asleep.",
                    [],
                ),
                (names.OPERATOR_DEPLOYMENT_READY, "Replicas of a ModelDeployment that are ready.", []),
                (
                    names.OPERATOR_DEPLOYMENT_START_SECONDS,
                    "Seconds that each phase of the newest replica's start took.",
                    ["phase"],
                ),
                (names.OPERATOR_SCALING_WANTED, "Replicas that autoscaling wants.", []),
                (
                    names.OPERATOR_SCALING_RECOMMENDED,
                    "Replicas that one signal alone asks for.",
                    ["signal"],
                ),
                (
                    names.OPERATOR_SCALING_BLIND,
                    "1 while the reports of a router or of a replica are missing, otherwise 0.",
                    [],
                ),
                (
                    names.OPERATOR_SCALING_CAPACITY_PENDING,
                    "Replicas that found no node for too long, that a gate holds, or that a quota refuses.",
                    [],
                ),
            )
        }

    def render(
        self,
        *,
        depth: int,
        leading: bool,
        behind: Mapping[Kind, float],
        objects: Mapping[str, int],
        conditions: Mapping[tuple[str, str], int],
        states: Mapping[tuple[str, str], DeploymentState],
        advice: Mapping[tuple[str, str], Advice],
    ) -> bytes:
        """The metrics page with these values for its gauges; `states` and `advice` by namespace and name."""
        self._depth.set(depth)
        self._leader.set(leading)
        for kind, seconds in behind.items():
            self._behind.labels(kind.plural).set(seconds)
        for name, count in objects.items():
            self._objects.labels(name).set(count)
        self._conditions.clear()  # a pair that no deployment has any more disappears
        for (condition, status), count in conditions.items():
            self._conditions.labels(condition, status).set(count)
        for gauge in self._of_each.values():
            gauge.clear()  # as above
        for key in sorted(states)[:MAX_DEPLOYMENTS]:
            state = states[key]
            for item in state.conditions:
                self._of_each[names.OPERATOR_DEPLOYMENT_CONDITION].labels(*key, *item).set(1)
            self._of_each[names.OPERATOR_DEPLOYMENT_WANTED].labels(*key).set(state.wanted_replicas)
            self._of_each[names.OPERATOR_DEPLOYMENT_READY].labels(*key).set(state.ready_replicas)
            for phase, milliseconds in state.start_milliseconds:
                gauge = self._of_each[names.OPERATOR_DEPLOYMENT_START_SECONDS]
                gauge.labels(*key, phase).set(milliseconds / 1000)
        for key in sorted(advice)[:MAX_DEPLOYMENTS]:
            self._set_advice(key, advice[key])
        return generate_latest(self._registry)

    def _set_advice(self, key: tuple[str, str], advice: Advice) -> None:
        if advice.settled:
            self._of_each[names.OPERATOR_SCALING_WANTED].labels(*key).set(advice.wanted)
        for signal, number in advice.latest.recommendations.items():
            self._of_each[names.OPERATOR_SCALING_RECOMMENDED].labels(*key, signal).set(number)
        self._of_each[names.OPERATOR_SCALING_BLIND].labels(*key).set(bool(advice.missing))
        self._of_each[names.OPERATOR_SCALING_CAPACITY_PENDING].labels(*key).set(advice.unschedulable)
