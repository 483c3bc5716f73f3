"""Replicas without a place: reported, and no stall while others of an autoscaled fleet serve."""

from typing import Any

from warmfleet_contracts.resources.conditions import ConditionStatus, ConditionType, Reason
from warmfleet_operator.status.conditions import conditions_of
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.stalls import stall
from warmfleet_testing.resources.condition_observations import failed, scaled, unschedulable
from warmfleet_testing.resources.observations import advice, deployment, pod, workers


def starved(**fields: Any) -> Observation:
    """Two of three replicas of an autoscaled fleet serve, and the third finds no node for ten minutes."""
    deadline = failed("Progressing", "ProgressDeadlineExceeded")
    return scaled(
        "Active",
        **{
            "desired_replicas": 3,
            "workers": workers(wanted=3, ready=2, conditions=(deadline,)),
            "pods": (pod("m-1"), pod("m-3"), unschedulable(600)),
            "advice": advice(unschedulable=1),
            **fields,
        },
    )


def test_a_replica_without_a_place_stalls_a_fixed_fleet_and_not_one_that_scales_and_serves() -> None:
    (scaling,) = [item for item in conditions_of(starved()) if item.type is ConditionType.SCALING_ACTIVE]

    assert stall(starved()) is None
    assert (scaling.status, scaling.reason) == (ConditionStatus.FALSE, Reason.CAPACITY_PENDING)
    fixed, alone = stall(starved(deployment=deployment())), stall(starved(pods=(unschedulable(600),)))
    assert (fixed and fixed.reason, alone and alone.reason) == (Reason.UNSCHEDULABLE, Reason.UNSCHEDULABLE)


def test_a_rollout_that_gives_replicas_without_a_place_back_is_not_stalled() -> None:
    mixed = (pod("m-1", revision="old"), pod("m-3"), unschedulable(600))

    stuck, eased = stall(starved(pods=mixed)), stall(starved(pods=mixed, desired_replicas=2))

    assert stuck is not None
    assert stuck.reason is Reason.NO_ROOM_FOR_SURGE
    assert eased is None
