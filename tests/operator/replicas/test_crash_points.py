"""A shrink whose operator is killed before or after any write: the right pods go, and each once."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from warmfleet_contracts.names import DELETION_COST_ANNOTATION
from warmfleet_operator.objects.kinds import POD
from warmfleet_testing.resources.shrinking_cluster import KilledError, OperatorOf, ShrinkingCluster

ROUNDS = 60


async def settle(cluster: ShrinkingCluster, lowest: int = 1) -> OperatorOf:
    """Reconcile every second until nothing is due; a killed operator is followed by a new one."""
    operator = OperatorOf(cluster, lowest)
    quiet = 0
    for _ in range(ROUNDS):
        numbers, deleted = list(cluster.numbers), list(cluster.deleted)
        try:
            again = await operator.reconcile()
        except KilledError:
            operator, again = OperatorOf(cluster, lowest), 0.0
        cluster.pass_time(1.0)
        changed = (numbers, deleted) != (cluster.numbers, cluster.deleted) or again is not None
        quiet = 0 if changed else quiet + 1
        if quiet == 2:
            return operator
    raise AssertionError(f"not settled after {ROUNDS} rounds")


def least_valuable(values: Sequence[float], count: int, unready: Sequence[int] = ()) -> set[str]:
    """By the rule: those that are not ready, then by value; of equal ones the newest."""
    order = sorted(range(len(values)), key=lambda number: (number not in unready, values[number], -number))
    return {f"uid-m-{number}" for number in order[:count]}


VALUES = st.lists(st.integers(0, 3).map(float), min_size=2, max_size=6)
KILLS = st.none() | st.tuples(st.integers(0, 8), st.booleans())


@settings(max_examples=50, deadline=None)
@given(VALUES, st.data(), KILLS)
@example([3.0, 0.0, 2.0, 1.0], None, (0, True))
def test_a_number_that_another_client_lowers_takes_the_least_valuable_pods_once(values, data, kill) -> None:
    wanted = 2 if data is None else data.draw(st.integers(1, len(values) - 1))
    unready = () if data is None else data.draw(st.sets(st.integers(0, len(values) - 1), max_size=2))

    async def run() -> None:
        cluster = ShrinkingCluster(values, tuple(unready))
        await settle(cluster)
        cluster.kill_at = None if kill is None else (kill[0] + 6, kill[1])  # after its six objects
        cluster.edit(replicas=wanted)
        await settle(cluster)

        assert cluster.numbers == [len(values), wanted]
        assert set(cluster.deleted) == least_valuable(values, len(values) - wanted, tuple(unready))
        assert len(cluster.deleted) == len(values) - wanted

    asyncio.run(run())


@settings(max_examples=30, deadline=None)
@given(VALUES, KILLS)
def test_shrinks_by_the_policy_go_one_at_a_time_and_each_once(values, kill) -> None:
    async def run() -> None:
        cluster = ShrinkingCluster(values, autoscaling={"mode": "Active", "maxReplicas": 8})
        cluster.kill_at = None if kill is None else (kill[0] + 6, kill[1])
        await settle(cluster)

        assert cluster.numbers == list(range(len(values), 0, -1))
        assert cluster.live() == {f"uid-m-{number}" for number in range(len(values))} - least_valuable(
            values, len(values) - 1
        )

    asyncio.run(run())


@settings(max_examples=50, deadline=None)
@given(VALUES, KILLS, KILLS, st.integers(1, 8))
@example([1.0, 2.0], (1, True), (0, True), 3)
def test_a_fleet_falls_asleep_stays_asleep_and_wakes_once(values, kill, second_kill, needed) -> None:
    async def run() -> None:
        scaling = {"mode": "Active", "minReplicas": 0, "maxReplicas": 8}
        cluster = ShrinkingCluster(values, autoscaling=scaling)
        cluster.kill_at = None if kill is None else (kill[0] + 6, kill[1])
        await settle(cluster, lowest=0)
        await settle(cluster, lowest=0)  # as another operator

        assert cluster.numbers == list(range(len(values), -1, -1))
        assert cluster.live() == set()

        cluster.held = needed
        cluster.kill_at = None if second_kill is None else (cluster.writes + second_kill[0], second_kill[1])
        await settle(cluster, lowest=0)

        assert cluster.numbers == [*range(len(values), -1, -1), needed]

    asyncio.run(run())


async def test_a_fleet_that_is_suspended_asleep_and_resumed_begins_with_its_first_size() -> None:
    cluster = ShrinkingCluster([1.0, 2.0], autoscaling={"mode": "Active", "minReplicas": 0, "maxReplicas": 8})
    await settle(cluster, lowest=0)
    cluster.edit(suspend=True)
    await settle(cluster, lowest=0)
    cluster.held = 2  # so that it does not fall asleep at once
    cluster.edit(suspend=False)
    await OperatorOf(cluster, 0).reconcile()

    assert cluster.numbers == [2, 1, 0, 2]


async def test_a_shrink_that_is_taken_back_leaves_marks_that_the_next_one_removes() -> None:
    cluster = ShrinkingCluster([1.0, 2.0, 3.0])
    operator = await settle(cluster)
    cluster.edit(replicas=2)
    await operator.reconcile()
    cluster.edit(replicas=3)
    await settle(cluster)
    assert cluster.deleted == []

    cluster.values = {"uid-m-0": 9.0, "uid-m-1": 2.0, "uid-m-2": 3.0}
    cluster.edit(replicas=2)
    await settle(cluster)

    assert cluster.deleted == ["uid-m-1"]
    pods = [body["metadata"] for kind, body in cluster.objects() if kind is POD]
    assert [pod for pod in pods if DELETION_COST_ANNOTATION in (pod.get("annotations") or {})] == []


async def test_all_victims_are_marked_before_the_one_write_and_those_that_went_are_counted() -> None:
    cluster = ShrinkingCluster([4.0, 1.0, 3.0, 2.0])
    operator = await settle(cluster)
    cluster.edit(replicas=1)

    assert await operator.reconcile() == pytest.approx(2.0)
    marked = {
        body["metadata"]["uid"]: body["metadata"].get("annotations", {}).get(DELETION_COST_ANNOTATION)
        for kind, body in cluster.objects()
        if kind is POD
    }
    cluster.pass_time(1.0)
    assert await operator.reconcile() == pytest.approx(1.0)
    assert cluster.numbers == [4]
    cluster.pass_time(1.0)
    await operator.reconcile()
    await operator.reconcile()

    assert marked == {"uid-m-1": "-3", "uid-m-3": "-2", "uid-m-2": "-1", "uid-m-0": None}
    assert cluster.numbers == [4, 1]
    assert cluster.deleted == ["uid-m-1", "uid-m-3", "uid-m-2"]
    assert (operator.went("ours"), operator.went("other")) == (3.0, 0.0)


async def test_the_number_waits_for_what_is_handed_over_and_no_longer_than_five_seconds() -> None:
    cluster = ShrinkingCluster([4.0, 1.0, 3.0])
    operator = await settle(cluster)
    cluster.handover_ends.clear()  # a router does not answer
    cluster.edit(replicas=2)
    lowered_after = None
    for seconds in range(8):
        await operator.reconcile()
        if cluster.numbers[-1] == 2 and lowered_after is None:
            lowered_after = seconds
        cluster.pass_time(1.0)

    assert cluster.handed_over == [("uid-m-1",)]
    assert lowered_after == 5

    cluster.edit(replicas=1)
    await operator.reconcile()
    cluster.handover_ends.set()
    cluster.pass_time(2.0)
    await operator.reconcile()  # it ends after this
    await operator.reconcile()
    assert cluster.numbers == [3, 2, 1]
    assert cluster.handed_over == [("uid-m-1",), ("uid-m-2",)]


async def test_victims_that_stay_after_all_are_not_waited_for() -> None:
    cluster = ShrinkingCluster([4.0, 1.0, 3.0])
    operator = await settle(cluster)
    cluster.handover_ends.clear()
    cluster.edit(replicas=2)
    await operator.reconcile()
    cluster.edit(replicas=3)
    await operator.reconcile()
    await operator.reconcile()

    assert cluster.numbers == [3]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "handover"]


async def test_to_none_at_all_no_pod_is_marked() -> None:
    cluster = ShrinkingCluster([1.0, 2.0])
    operator = await settle(cluster)
    cluster.edit(suspend=True)
    await operator.reconcile()

    assert cluster.numbers == [2, 0]


async def test_a_rollout_begins_with_the_replicas_that_have_a_place() -> None:
    cluster = ShrinkingCluster(
        [1.0, 2.0, 3.0, 4.0], without_node=(3,), autoscaling={"mode": "Active", "maxReplicas": 8}
    )
    await settle(cluster, lowest=4)
    assert cluster.numbers == [4]

    cluster.edit(engine={"maxRunningSequences": 8})
    await settle(cluster, lowest=2)

    assert cluster.numbers == [4, 3], "and the policy's own shrink waits for its end"
    assert cluster.deleted == ["uid-m-3"]
