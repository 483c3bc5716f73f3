"""A namespace with an operator; kubelets and router are played, so that a test sets what totals report."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, running_operator
from warmfleet_testing.cluster.pod_statuses import PlayedPods, ready_router
from warmfleet_testing.resources.scaling_signals import replica, totals
from warmfleet_testing.router.stub_router import StubRouter, stub_router

MODEL: Final = {"source": {"image": {"reference": "registry.invalid/model:1"}}}


@dataclass
class PlayedFleet:
    """A namespace with an operator, and the router that it asks."""

    fleet: ModelNamespace
    router: StubRouter

    def apply(
        self, name: str, mode: str = "", replicas: int = 1, *, idle_seconds: int = 0, **spec: Any
    ) -> None:
        """A ModelDeployment; without a mode its number is fixed. With `idle_seconds` it may sleep."""
        fast: dict[str, Any] = {"stabilizationSeconds": 1}
        scaling = {"mode": mode, "maxReplicas": 8, "scaleUp": fast, "scaleDown": {**fast, "periodSeconds": 1}}
        if idle_seconds:
            scaling |= {"minReplicas": 0, "zero": {"idleSeconds": idle_seconds}}
        if mode:
            spec["autoscaling"] = scaling
        self.fleet.apply(name, model=MODEL, replicas=replicas, **spec)

    def pods(self, name: str, of: int) -> list[str]:
        """Uids of its pods, once there are so many."""
        pods = PlayedPods(self.fleet.plane, self.fleet.namespace, name).wait(of)
        return [pod["metadata"]["uid"] for pod in pods]

    def serve(
        self, name: str, of: int = 1, *, pinned_tokens: int = 0, values: Mapping[int, float] | None = None
    ) -> list[str]:
        """All its `of` pods are ready, and their sequences hold so many tokens each.

        Args:
            name: the ModelDeployment.
            of: how many pods there are.
            pinned_tokens: that the sequences of each hold.
            values: by pod, what only it holds in tokens reused per second; 1,000 for the others.

        Returns:
            Their uids.
        """
        PlayedPods(self.fleet.plane, self.fleet.namespace, name).serve(of)
        uids = self.pods(name, of)
        self.router.totals = totals(
            "stub",
            replicas=[
                replica(
                    uid,
                    pinned_tokens=pinned_tokens,
                    unique_value_tokens_per_second=(values or {}).get(number, 1000.0),
                )
                for number, uid in enumerate(uids)
            ],
        )
        return uids

    def status(self, name: str) -> dict[str, Any]:
        """Of the ModelDeployment."""
        found: dict[str, Any] = self.fleet.get("modeldeployment", name)["status"]
        return found

    def reasons(self, name: str) -> list[str]:
        """Of the decisions in its status, newest first."""
        return [decision["reason"] for decision in self.status(name)["scaling"]["decisions"]]

    def replicas(self, name: str) -> int:
        """Of the Deployment."""
        return int(self.fleet.get("deployment", name)["spec"]["replicas"])

    @contextmanager
    def operator(self, name: str = "operator-0") -> Iterator[OperatorProcess]:
        """An operator, killed at the end."""
        flags = ("--router-poll-seconds=0.5", "--scaling-seconds=0.3", f"--router-port={self.router.port}")
        with running_operator(self.fleet.plane, self.fleet.namespace, *flags, name=name) as operator:
            yield operator


@contextmanager
def played_fleet(plane: ControlPlane, namespace: str) -> Iterator[PlayedFleet]:
    """A new namespace with a played router and no operator."""
    with stub_router() as router, model_namespace(plane, namespace) as fleet:
        ready_router(plane, fleet.namespace, "127.0.0.1")
        yield PlayedFleet(fleet, router)
