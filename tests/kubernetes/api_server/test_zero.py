"""Fleets that sleep at no replica and wake by what routers hold, on a real API server and its controllers.

Kubelets and the router are played, so that a test sets what the totals report.
"""

from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.operator_process import eventually
from warmfleet_testing.cluster.played_fleet import PlayedFleet, played_fleet
from warmfleet_testing.resources.scaling_signals import totals


def hold(made: PlayedFleet, requests: int) -> None:
    """The router holds requests for the model `m`, and knows no worker."""
    made.router.totals = totals("stub", held_requests=requests, held_tokens=100 * requests)


def asleep(made: PlayedFleet) -> str:
    """Wait until it sleeps; since when."""
    wait_for_conditions(made.fleet, "m", Ready="True Asleep", Stalled="False NotStalled")
    assert made.replicas("m") == 0
    since: str = made.status("m")["scaling"]["asleepSince"]
    return since


def test_an_idle_fleet_sleeps_through_a_restart_and_a_rollout_and_wakes_by_a_held_request(
    control_plane: ControlPlane,
) -> None:
    with played_fleet(control_plane, "zero") as made:
        with made.operator():
            made.apply("m", "Active", replicas=2, idle_seconds=1)
            made.serve("m", 2)
            wait_for_conditions(
                made.fleet,
                "m",
                Ready="True Asleep",
                Available="False Asleep",
                Reconciling="False Asleep",
                RouterReady="False Asleep",
            )
            since = asleep(made)
            hold(made, 0)

        with made.operator("operator-1") as operator:
            operator.wait_until_leading()
            made.apply("m", "Active", replicas=2, idle_seconds=1, engine={"maxRunningSequences": 8})
            messages = wait_for_conditions(
                made.fleet, "m", Ready="True Asleep", ScalingActive="True FollowsDemand"
            )
            assert since in messages["Ready"]
            assert asleep(made) == since
            row = made.fleet.kubectl("get", "modeldeployment", "m").splitlines()[1].split()
            assert row[:4] == ["m", "m", "0/0", "Asleep"]

            hold(made, 3)
            eventually(lambda: made.replicas("m") == 1)
            wait_for_conditions(made.fleet, "m", Ready="False Progressing", Stalled="False NotStalled")
            made.serve("m")
            wait_for_conditions(made.fleet, "m", Available="True MinimumReplicasAvailable")
            reasons = [item["reason"] for item in made.status("m")["scaling"]["decisions"]]
            assert reasons[:3] == ["RequestsHeld", "Idle", "DemandBelowSupply"]
            assert asleep(made) > since, "once more"


def test_a_fleet_that_a_client_sets_to_none_sleeps_and_one_that_is_suspended_does_not(
    control_plane: ControlPlane,
) -> None:
    with played_fleet(control_plane, "by-hand") as made, made.operator():
        hold(made, 0)
        made.apply("m", "Active", replicas=2, idle_seconds=600)
        made.pods("m", 2)  # none of them ever gets ready
        made.fleet.kubectl("scale", "modeldeployment", "m", "--replicas=0")
        messages = wait_for_conditions(made.fleet, "m", ScalingActive="False ExternalScaler")
        assert "from 2 to 0, which has no effect" in messages["ScalingActive"]
        assert made.replicas("m") == 2
        made.fleet.kubectl("scale", "modeldeployment", "m", "--replicas=2")

        made.fleet.kubectl("scale", "deployment", "m", "--replicas=0")
        asleep(made)
        messages = wait_for_conditions(made.fleet, "m", ScalingActive="False ExternalScaler")
        assert "set the Deployment to 0 replicas" in messages["ScalingActive"]
        hold(made, 1)
        eventually(lambda: made.replicas("m") == 1)

        hold(made, 0)
        made.fleet.merge("modeldeployment", "m", {"spec": {"suspend": True}})
        wait_for_conditions(made.fleet, "m", Ready="True Suspended", ScalingActive="False Suspended")
        made.fleet.merge("modeldeployment", "m", {"spec": {"suspend": False}})
        eventually(lambda: made.replicas("m") == 2)
