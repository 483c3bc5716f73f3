"""A branch of a model against a hub on a local port: one commit per rollout for all its life."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from warmfleet_contracts.names import RESOLVED_ANNOTATION
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT
from warmfleet_operator.objects.rollouts import template_revision
from warmfleet_testing.engine.fake_hub import REVISION, FakeHub, running_hub
from warmfleet_testing.resources.shrinking_cluster import KilledError, OperatorOf, ShrinkingCluster

MOVED = "f" * 40
Test = Callable[[FakeHub], Awaitable[None]]


def model(**hub: Any) -> dict[str, Any]:
    return {"source": {"huggingFace": {"repository": "acme/tiny", **hub}}}


def with_hub(test: Test) -> None:
    with running_hub() as hub:
        hub.branches = {"main": REVISION, "v2": MOVED}
        asyncio.run(asyncio.wait_for(test(hub), 60))


async def reconciled(operator: OperatorOf, *, hub_is_asked: bool = True) -> None:
    """As the queue does it: again once the hub has answered."""
    operator.resolved.clear()
    await operator.reconcile()
    if hub_is_asked:
        await operator.resolved.wait()
        await operator.reconcile()


def status(cluster: ShrinkingCluster) -> dict[str, Any]:
    (body,) = [body for kind, body in cluster.objects() if kind is MODEL_DEPLOYMENT]
    found: dict[str, Any] = body["status"]
    return found


def condition(cluster: ShrinkingCluster, kind: str) -> tuple[str, str, str]:
    (found,) = [item for item in status(cluster)["conditions"] if item["type"] == kind]
    return found["status"], found["reason"], found["message"]


def fetched_commit(cluster: ShrinkingCluster) -> str:
    """What every pod of the Deployment fetches, new replicas too."""
    (fetch,) = cluster.workers()["spec"]["template"]["spec"]["initContainers"]
    args: list[str] = fetch["args"]
    return args[args.index("--revision") + 1]


def test_a_branch_becomes_the_commit_of_every_pod_and_stays_it() -> None:
    async def test(hub: FakeHub) -> None:
        cluster = ShrinkingCluster([1.0, 1.0], model=model(revision="main"))
        operator = OperatorOf(cluster, hub_endpoint=hub.url)
        await operator.reconcile()
        assert condition(cluster, "Reconciling")[:2] == ("True", "ResolvingRevision")
        assert condition(cluster, "Stalled")[0] == "False"
        await operator.resolved.wait()
        await operator.reconcile()
        assert fetched_commit(cluster) == REVISION
        assert status(cluster)["model"] == {"revision": REVISION, "resolvedFrom": "acme/tiny@main"}
        noted = cluster.workers()["metadata"]["annotations"][RESOLVED_ANNOTATION]
        assert noted == f"acme/tiny@main {REVISION}"

        hub.branches["main"] = MOVED
        written, asked = cluster.writes, len(hub.seen)
        await operator.reconcile()
        assert cluster.writes == written
        cluster.edit(replicas=5, resources={"limits": {"memory": "2Gi"}})  # more of them, and a rollout
        await reconciled(OperatorOf(cluster, hub_endpoint=hub.url), hub_is_asked=False)  # by another life
        assert cluster.workers()["spec"]["replicas"] == 5
        assert fetched_commit(cluster) == REVISION
        assert len(hub.seen) == asked == 1

    with_hub(test)


def test_a_fleet_that_sleeps_and_is_woken_by_requests_asks_nothing() -> None:
    """Requests of clients reach no hub, and the woken workers are of the commit of their rollout."""

    async def test(hub: FakeHub) -> None:
        scaling = {"mode": "Active", "minReplicas": 0, "maxReplicas": 8}
        cluster = ShrinkingCluster([1.0], model=model(), autoscaling=scaling)
        operator = OperatorOf(cluster, 0, hub_endpoint=hub.url)
        await reconciled(operator)
        hub.branches["main"] = MOVED
        while (again := await operator.reconcile()) is not None:
            cluster.pass_time(again)
        assert cluster.workers()["spec"]["replicas"] == 0
        cluster.held = 2
        await OperatorOf(cluster, 0, hub_endpoint=hub.url).reconcile()
        assert cluster.workers()["spec"]["replicas"] == 2
        assert fetched_commit(cluster) == REVISION
        assert len(hub.seen) == 1

    with_hub(test)


@pytest.mark.parametrize("lost", ["the status", "the Deployment"])
def test_one_memory_is_enough(lost: str) -> None:
    async def test(hub: FakeHub) -> None:
        cluster = ShrinkingCluster([1.0], model=model())
        await reconciled(OperatorOf(cluster, hub_endpoint=hub.url))
        hub.branches["main"] = MOVED
        if lost == "the status":
            (body,) = [body for kind, body in cluster.objects() if kind is MODEL_DEPLOYMENT]
            cluster.put(MODEL_DEPLOYMENT, {**body, "status": {}})
        else:
            cluster.remove(DEPLOYMENT)
        await reconciled(OperatorOf(cluster, hub_endpoint=hub.url), hub_is_asked=False)
        assert fetched_commit(cluster) == REVISION
        assert status(cluster)["model"]["revision"] == REVISION
        assert len(hub.seen) == 1

    with_hub(test)


def test_another_revision_rolls_and_its_commit_in_the_spec_does_not() -> None:
    async def test(hub: FakeHub) -> None:
        cluster = ShrinkingCluster([1.0], model=model())
        operator = OperatorOf(cluster, hub_endpoint=hub.url)
        await reconciled(operator)
        first = template_revision(cluster.workers())
        cluster.edit(model=model(revision="v2"))
        await reconciled(operator)
        second = template_revision(cluster.workers())
        assert (fetched_commit(cluster), second != first) == (MOVED, True)
        cluster.edit(model=model(revision=MOVED))
        await reconciled(operator, hub_is_asked=False)
        assert template_revision(cluster.workers()) == second
        assert status(cluster)["model"] == {"revision": MOVED}
        assert RESOLVED_ANNOTATION not in cluster.workers()["metadata"]["annotations"]
        hub.branches["main"] = "e" * 40
        cluster.edit(model=model())  # a changed source: the branch as it is now
        await reconciled(operator)
        assert fetched_commit(cluster) == "e" * 40

    with_hub(test)


def test_while_the_hub_does_not_answer_the_running_workers_stay() -> None:
    async def test(hub: FakeHub) -> None:
        cluster = ShrinkingCluster([1.0, 1.0], model=model())
        operator = OperatorOf(cluster, hub_endpoint=hub.url)
        await reconciled(operator)
        before = cluster.workers()
        hub.failures = [503]
        cluster.edit(model=model(revision="v2"))
        await reconciled(operator)
        assert condition(cluster, "Stalled")[:2] == ("True", "HubUnreachable")
        assert "answered 503" in condition(cluster, "Ready")[2]
        assert cluster.workers() == before
        assert status(cluster)["model"]["revision"] == REVISION  # what is served
        again = await operator.reconcile()
        assert again is not None
        assert len(hub.seen) == 2  # not before it is due
        cluster.now += again
        await reconciled(operator)
        assert fetched_commit(cluster) == MOVED
        assert condition(cluster, "Stalled")[0] == "False"

    with_hub(test)


def test_a_wrong_revision_is_refused_until_the_spec_is_right() -> None:
    async def test(hub: FakeHub) -> None:
        cluster = ShrinkingCluster([1.0], model=model(revision="typo"))
        operator = OperatorOf(cluster, hub_endpoint=hub.url)
        await reconciled(operator)
        assert condition(cluster, "Stalled")[:2] == ("True", Reason.REVISION_UNRESOLVED.value)
        assert "has no branch, tag or commit typo" in condition(cluster, "Stalled")[2]
        assert "model" not in status(cluster)
        cluster.edit(model=model(revision="v2"))  # at once: no backoff of another revision
        await reconciled(operator)
        assert fetched_commit(cluster) == MOVED

    with_hub(test)


def test_an_operator_killed_at_any_write_leaves_one_commit() -> None:
    async def test(hub: FakeHub) -> None:
        for write in range(20):
            hub.branches["main"] = REVISION
            cluster = ShrinkingCluster([1.0], model=model())
            cluster.kill_at = (write, write % 2 == 0)
            with suppress(KilledError):
                await reconciled(OperatorOf(cluster, hub_endpoint=hub.url))
            if cluster.writes <= write:
                return
            cluster.kill_at = None
            written = any(kind is DEPLOYMENT for kind, _ in cluster.objects())
            hub.branches["main"] = MOVED
            await reconciled(OperatorOf(cluster, hub_endpoint=hub.url), hub_is_asked=not written)
            assert fetched_commit(cluster) == (REVISION if written else MOVED)
            assert status(cluster)["model"]["revision"] == fetched_commit(cluster)
        raise AssertionError("a reconciliation has fewer writes")

    with_hub(test)
