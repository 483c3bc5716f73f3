"""Advice on a real API server: the wanted number, its reasons, and that nothing is scaled.

Kubelets and the router are played, so that a test sets what the totals report.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import eventually, running_operator
from warmfleet_testing.cluster.pod_statuses import PlayedPods, ready_router
from warmfleet_testing.cluster.stub_router import StubRouter, stub_router
from warmfleet_testing.resources.scaling_signals import SUPPLY_TOKENS, replica, totals

MODEL = {"source": {"image": {"reference": "registry.invalid/model:1"}}}
SIGNALS_LOST_SECONDS = 75.0
"""An answer counts for ten seconds, and missing signals are reported after thirty."""


@dataclass
class Advised:
    """A namespace with an operator, and the router that it asks."""

    fleet: ModelNamespace
    router: StubRouter

    def apply(self, name: str, mode: str, replicas: int = 1, **spec: Any) -> None:
        scaling = {"mode": mode, "maxReplicas": 8, "scaleUp": {"stabilizationSeconds": 1}}
        self.fleet.apply(name, model=MODEL, replicas=replicas, autoscaling=scaling, **spec)

    def serve(self, name: str, pinned_tokens: int) -> None:
        """Its pods are ready, and their sequences hold so many tokens each."""
        played = PlayedPods(self.fleet.plane, self.fleet.namespace, name)
        played.serve()
        uids = [pod["metadata"]["uid"] for pod in played.wait()]
        reports = [replica(uid, pinned_tokens=pinned_tokens) for uid in uids]
        self.router.totals = totals("stub", replicas=reports)

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.fleet.get("modeldeployment", name)["status"]
        return found


@contextmanager
def advised(plane: ControlPlane, namespace: str) -> Iterator[Advised]:
    with stub_router() as router, model_namespace(plane, namespace) as fleet:
        flags = (
            "--router-poll-seconds=0.5",
            "--scaling-seconds=0.3",
            f"--router-port={router.port}",
        )
        ready_router(plane, fleet.namespace, "127.0.0.1")
        with running_operator(plane, fleet.namespace, *flags):
            yield Advised(fleet, router)


def test_the_wanted_number_is_shown_with_its_reason_and_nothing_is_scaled(
    control_plane: ControlPlane,
) -> None:
    with advised(control_plane, "advice") as made:
        made.apply("busy", "Advisory")
        made.serve("busy", SUPPLY_TOKENS)

        eventually(lambda: made.status("busy")["desiredReplicas"] == 2)
        messages = wait_for_conditions(made.fleet, "busy", ScalingActive="False Advisory")
        status = made.status("busy")
        (decision,) = status["scaling"]["decisions"]
        deployment = made.fleet.get("deployment", "busy")
        events = eventually(
            lambda: [item for item in made.fleet.items("events") if item["reason"] == "DemandAboveSupply"]
        )

        assert messages["ScalingActive"] == "2 replicas are wanted, and 1 are set; nothing is scaled"
        assert (decision["from"], decision["to"], decision["reason"]) == (1, 2, "DemandAboveSupply")
        assert decision["recommendations"]["tokens"] == 2
        assert decision["inputs"]["demandTokens"] == str(SUPPLY_TOKENS)
        assert status["readySummary"] == "1/1"
        assert deployment["spec"]["replicas"] == 1
        assert len(events) == 1
        assert events[0]["message" if "message" in events[0] else "note"].startswith("wants 2 replicas")

        made.apply("busy", "Active")
        wait_for_conditions(made.fleet, "busy", ScalingActive="False NotYetActing")
        made.apply("busy", "Paused")
        wait_for_conditions(made.fleet, "busy", ScalingActive="False Paused")
        assert made.status("busy")["desiredReplicas"] == 1
        made.apply("busy", "Active", suspend=True)
        wait_for_conditions(made.fleet, "busy", ScalingActive="False Suspended")
        assert made.fleet.get("deployment", "busy")["spec"]["replicas"] == 0


def test_a_quota_is_a_budget_and_lost_signals_are_reported(control_plane: ControlPlane) -> None:
    with advised(control_plane, "budget") as made:
        # The played router is a pod, too.
        made.fleet.kubectl("create", "quota", "budget", "--hard=pods=2")
        eventually(lambda: control_plane.get("quota", "budget", "-n", made.fleet.namespace)["status"]["used"])
        made.apply("rich", "Advisory", replicas=2)
        made.serve("rich", SUPPLY_TOKENS)

        messages = wait_for_conditions(
            made.fleet, "rich", ScalingActive="False CapacityPending", Stalled="False NotStalled"
        )
        assert "get a place" in messages["ScalingActive"]
        assert made.status("rich")["desiredReplicas"] == 2

        made.router.status = 500
        wait_for_conditions(
            made.fleet, "rich", seconds=SIGNALS_LOST_SECONDS, ScalingActive="Unknown SignalsMissing"
        )
        assert made.status("rich")["desiredReplicas"] == 2
