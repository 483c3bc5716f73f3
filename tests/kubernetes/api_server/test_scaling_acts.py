"""Autoscaling that acts, and the one way to fewer replicas, on a real API server and its controllers.

Kubelets and the router are played, so that a test sets what the totals report.
"""

from warmfleet_contracts.names import DELETION_COST_ANNOTATION
from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually
from warmfleet_testing.cluster.played_fleet import PlayedFleet, played_fleet
from warmfleet_testing.resources.scaling_signals import SUPPLY_TOKENS

VICTIMS = "warmfleet_operator_shrink_victims_total"


def gone(made: PlayedFleet, name: str, before: list[str], left: int) -> set[str]:
    """Uids of the pods that went until so many were left."""
    return set(before) - set(made.pods(name, left))


def counted(operator: OperatorProcess, ours: int) -> None:
    """The pods that went are those that were marked."""
    eventually(lambda: operator.metric(VICTIMS, choice="ours") == ours)
    assert operator.metric(VICTIMS, choice="other") == 0


def test_active_grows_under_load_survives_its_operator_and_gives_up_the_least_valuable_pod(
    control_plane: ControlPlane,
) -> None:
    with played_fleet(control_plane, "acts") as made:
        with made.operator():
            made.apply("busy", "Active")
            made.serve("busy", pinned_tokens=SUPPLY_TOKENS)
            messages = wait_for_conditions(made.fleet, "busy", ScalingActive="True FollowsDemand")
            assert messages["ScalingActive"].endswith(" are set")
            eventually(lambda: made.replicas("busy") == 2)
            made.serve("busy", 2, pinned_tokens=SUPPLY_TOKENS * 6 // 10)
            eventually(lambda: made.status("busy")["readySummary"] == "2/2")
            generation = made.fleet.get("modeldeployment", "busy")["metadata"]["generation"]

        with made.operator("operator-1") as operator:
            operator.wait_until_leading()
            made.fleet.scale("modeldeployment", "busy", 5)
            messages = wait_for_conditions(made.fleet, "busy", ScalingActive="False ExternalScaler")
            assert "from 1 to 5, which has no effect" in messages["ScalingActive"]
            assert made.replicas("busy") == 2
            made.fleet.scale("modeldeployment", "busy", 1)
            wait_for_conditions(made.fleet, "busy", ScalingActive="True FollowsDemand")

            # Three by another client's write: it counts, and then nothing needs them.
            made.fleet.scale("deployment", "busy", 3)
            before = made.pods("busy", 3)
            assert made.serve("busy", 3, values={1: 1.0, 2: 50.0}) == before

            assert gone(made, "busy", before, 1) == {before[1], before[2]}
            counted(operator, 2)

            def shrinks_are_shown() -> bool:
                assert made.reasons("busy")[:2] == ["DemandBelowSupply"] * 2
                return True

            # A decision is carried out before the status has it.
            eventually(shrinks_are_shown)
            written = made.fleet.get("modeldeployment", "busy")
            assert written["spec"]["replicas"] == 1
            assert written["metadata"]["generation"] == generation + 2, "the two writes of this test"


def test_a_replica_that_was_added_while_no_operator_led_is_recorded_as_it_goes(
    control_plane: ControlPlane,
) -> None:
    with played_fleet(control_plane, "unled") as made:
        with made.operator():
            made.apply("lone", "Active")
            made.serve("lone")
            eventually(lambda: made.status("lone")["readySummary"] == "1/1")
        made.fleet.scale("deployment", "lone", 2)
        made.serve("lone", 2)

        with made.operator("operator-1"):
            eventually(lambda: made.replicas("lone") == 1)
            eventually(lambda: made.reasons("lone") == ["DemandBelowSupply", "ReplicasSet"])


def test_a_number_that_any_client_lowers_takes_the_least_valuable_pods(control_plane: ControlPlane) -> None:
    with played_fleet(control_plane, "lowered") as made, made.operator() as operator:
        made.apply("fixed", replicas=5)
        before = made.serve("fixed", 5, values={0: 7.0, 2: 3.0, 4: 9.0})

        made.fleet.kubectl("scale", "modeldeployment", "fixed", "--replicas=4")
        assert gone(made, "fixed", before, 4) == {before[2]}

        # As an HPA does: read the scale, write it, read it again.
        made.fleet.scale("modeldeployment", "fixed", 2)
        assert gone(made, "fixed", before, 2) == {before[0], before[2], before[4]}
        counted(operator, 3)
        survivors = made.fleet.items("pods", labelSelector="warmfleet.dev/model-deployment=fixed")
        assert all(DELETION_COST_ANNOTATION not in pod["metadata"]["annotations"] for pod in survivors)


def test_pods_that_do_not_serve_go_first_and_none_is_waited_for(control_plane: ControlPlane) -> None:
    with played_fleet(control_plane, "crashing") as made, made.operator():
        made.apply("half", replicas=2)
        served = made.serve("half", 2, values={0: 1.0, 1: 2.0})
        made.fleet.scale("modeldeployment", "half", 4)
        before = made.pods("half", 4)
        made.fleet.scale("modeldeployment", "half", 2)

        assert gone(made, "half", before, 2) == set(before) - set(served)
