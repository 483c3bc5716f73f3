"""Fleets with autoscaling in a store, the totals that routers report of them, and the advisor over both."""

from dataclasses import replace
from typing import Any, Final

from warmfleet_contracts.cache.fleet_totals import (
    LATENCY_BOUNDS_MS,
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    ModelTotals,
)
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD
from warmfleet_operator.scaling.policy import LatencyGoal
from warmfleet_operator.scaling.signals import Reading
from warmfleet_operator.status.advisor import ScalingAdvisor
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_testing.resources.observations import deployment, workers
from warmfleet_testing.resources.scaling_signals import POLICY, replica

WITH_TARGETS: Final = replace(POLICY, first_token=LatencyGoal(95, 1000), between_tokens=LatencyGoal(95, 1000))


class Totals:
    """Routers that answer what a test gives them."""

    def __init__(self) -> None:
        self.routers = 1
        self.answers: tuple[FleetTotals, ...] = ()
        self.reads = 0

    def readings(self) -> tuple[Reading, ...]:
        self.reads += 1
        return tuple(Reading(answer) for answer in self.answers)


def pod_of(name: str, owner: str) -> dict[str, Any]:
    """A ready worker of the API server."""
    return {
        "metadata": {
            "name": name,
            "namespace": "models",
            "uid": f"uid-{name}",
            "resourceVersion": "20",
            "labels": {"warmfleet.dev/model-deployment": owner, "warmfleet.dev/revision": "new"},
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


class Fleets:
    """A store with fleets of equal replicas, and the advisor over it."""

    def __init__(self, count: int, replicas: int, pinned_tokens: int = 0) -> None:
        self.store = Store(lambda _: None)
        self.totals = Totals()
        self.changed: list[Key] = []
        self.keys = [Key("models", f"m{number}") for number in range(count)]
        reports = []
        for key in self.keys:
            self.store.put(entry_of(MODEL_DEPLOYMENT, deployment(key.name)))
            made = workers(wanted=replicas, ready=replicas)
            made["metadata"] |= {
                "name": key.name,
                "uid": f"uid-{key.name}",
                "labels": {"warmfleet.dev/model-deployment": key.name},
            }
            self.store.put(entry_of(DEPLOYMENT, made))
            for number in range(replicas):
                pod = pod_of(f"{key.name}-{number}", key.name)
                self.store.put(entry_of(POD, pod))
                reports.append(replica(pod["metadata"]["uid"], pinned_tokens=pinned_tokens))
        self.totals.answers = (
            FleetTotals(
                router="a",
                uptime_seconds=1e6,
                models={key.name: ModelTotals(prompt_tokens=10) for key in self.keys},
                replicas=tuple(reports),
            ),
        )
        self.advisor = ScalingAdvisor(
            store=self.store, totals=self.totals, no_room_seconds=120.0, on_change=self.changed.append
        )
        for key in self.keys:
            self.advisor.follow(key, POLICY, [key.name])

    def run(self, seconds: float, start: float = 0.0) -> None:
        """Ticks every two seconds."""
        for tick in range(round(seconds / 2) + 1):
            self.advisor.tick(start + 2.0 * tick)

    def busy_answer(self, router: str, second: int) -> FleetTotals:
        """A router's totals while requests of every latency are answered, growing from second to second."""
        histogram = LatencyHistogram(tuple(second + bucket for bucket in range(len(LATENCY_BOUNDS_MS) + 1)))
        model = ModelTotals(
            queued_requests=1,
            queued_tokens=900,
            prompt_tokens=10_000 * second,
            cached_tokens=6_000 * second,
            misses=MissTokens(compulsory=3_000 * second, capacity=1_000 * second),
            first_token=histogram,
            inter_token=histogram,
        )
        (known,) = self.totals.answers[:1]
        models = {key.name: model for key in self.keys}
        return FleetTotals(router=router, uptime_seconds=1e6, models=models, replicas=known.replicas)
