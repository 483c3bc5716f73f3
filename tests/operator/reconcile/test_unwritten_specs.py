"""What is reported of a fleet whose newest spec cannot be written: that of the workers that run."""

import asyncio
from typing import Any

import pytest

from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT
from warmfleet_testing.resources.shrinking_cluster import OperatorOf, ShrinkingCluster

REPLICAS = 4
MISTYPED = {"podTemplate": {"spec": {"containers": None}}}
UNREADABLE = {"kvCache": {"size": "64Mi", "prefixCaching": "Perhaps"}}
IMAGE, NEXT_IMAGE = "registry.example/worker:1", "registry.example/worker:2"
OTHER_IMAGE = {"engine": {"image": NEXT_IMAGE}}


def status(cluster: ShrinkingCluster) -> dict[str, Any]:
    (body,) = [body for kind, body in cluster.objects() if kind is MODEL_DEPLOYMENT]
    found: dict[str, Any] = body["status"]
    return found


def condition(cluster: ShrinkingCluster, kind: str) -> dict[str, Any]:
    (found,) = [item for item in status(cluster)["conditions"] if item["type"] == kind]
    return dict(found)


def report(cluster: ShrinkingCluster, *, ready: int) -> None:
    """The Deployment's status, as its controller writes it."""
    workers = cluster.workers()
    counts = dict.fromkeys(("readyReplicas", "availableReplicas"), ready)
    counts |= dict.fromkeys(("replicas", "updatedReplicas"), REPLICAS)
    cluster.put(DEPLOYMENT, {**workers, "status": counts})


async def after(mode: str, wrong: dict[str, Any]) -> ShrinkingCluster:
    """A fleet of one by its spec that has grown to four, of which one is left when its spec gets wrong."""
    scaling = {"mode": "Active", "minReplicas": 1, "maxReplicas": 8}
    cluster = ShrinkingCluster([1.0], autoscaling=scaling)
    operator = OperatorOf(cluster, worker_cpu_image=IMAGE)
    cluster.held = REPLICAS
    await operator.reconcile()
    await operator.reconcile()
    assert cluster.numbers[-1] == REPLICAS
    report(cluster, ready=REPLICAS)
    cluster.edit(autoscaling={**scaling, "mode": mode})
    await operator.reconcile()
    report(cluster, ready=1)
    cluster.edit(**wrong)
    await operator.reconcile()
    return cluster


@pytest.mark.parametrize("mode", ["Active", "Advisory", "Paused"])
@pytest.mark.parametrize("wrong", [MISTYPED, UNREADABLE], ids=["mistyped", "unreadable"])
def test_a_grown_fleet_with_an_error_in_its_spec_counts_against_the_number_that_it_has(mode, wrong) -> None:
    cluster = asyncio.run(after(mode, wrong))

    assert cluster.workers()["spec"]["replicas"] == REPLICAS
    assert status(cluster)["readySummary"] == f"1/{REPLICAS}"
    assert condition(cluster, "Stalled")["reason"] == "InvalidSpec"
    assert condition(cluster, "Available")["reason"] == "MinimumReplicasUnavailable"


def test_nothing_is_scaled_while_the_spec_has_an_error() -> None:
    wrong = condition(asyncio.run(after("Active", MISTYPED)), "ScalingActive")
    right = condition(asyncio.run(after("Active", OTHER_IMAGE)), "ScalingActive")

    assert (wrong["status"], wrong["reason"]) == ("False", "Advisory")
    assert wrong["message"].endswith("nothing is scaled until its objects are written: see condition Ready")
    assert (right["status"], right["reason"]) == ("True", "FollowsDemand")


def test_the_image_is_that_of_the_workers_and_not_of_a_spec_that_is_not_written() -> None:
    assert status(asyncio.run(after("Active", {**MISTYPED, **OTHER_IMAGE})))["image"] == IMAGE
    assert status(asyncio.run(after("Active", OTHER_IMAGE)))["image"] == NEXT_IMAGE
