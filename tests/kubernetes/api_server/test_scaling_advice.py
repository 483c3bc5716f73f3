"""Advice on a real API server: the wanted number, its reasons, and that nothing is scaled.

Kubelets and the router are played, so that a test sets what the totals report.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.operator_process import eventually
from warmfleet_testing.cluster.played_fleet import PlayedFleet, played_fleet
from warmfleet_testing.resources.scaling_signals import SUPPLY_TOKENS

SIGNALS_LOST_SECONDS = 75.0
"""An answer counts for ten seconds, and missing signals are reported after thirty."""


@contextmanager
def advised(plane: ControlPlane, namespace: str) -> Iterator[PlayedFleet]:
    with played_fleet(plane, namespace) as made, made.operator():
        yield made


def test_the_wanted_number_is_shown_with_its_reason_and_nothing_is_scaled(
    control_plane: ControlPlane,
) -> None:
    with advised(control_plane, "advice") as made:
        made.apply("busy", "Advisory")
        made.serve("busy", pinned_tokens=SUPPLY_TOKENS)

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
        made.serve("rich", pinned_tokens=SUPPLY_TOKENS)

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
