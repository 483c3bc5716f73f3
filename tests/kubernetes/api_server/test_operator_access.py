"""The operator under the chart's own roles, and beside watches that have died."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import NotLeadingError
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.objects.kinds import MODEL_DEPLOYMENT
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_operator.watch.sync import Sync
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import eventually, running_operator
from warmfleet_testing.resources.chart_render import render

POLICY_KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@pytest.fixture
def fleet(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[ModelNamespace]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    with model_namespace(control_plane, name) as made:
        yield made


def test_the_charts_roles_are_enough_and_no_more_is_asked_for(fleet: ModelNamespace, tmp_path) -> None:
    rendered = render(namespace=fleet.namespace)
    kinds = ("ServiceAccount", "Role", "RoleBinding", *POLICY_KINDS)
    roles = [item for item in rendered.objects if item["kind"] in kinds]
    assert {item["kind"] for item in roles} == set(kinds)
    path = fleet.operator_kubeconfig(roles, tmp_path)
    since = time.time()

    with running_operator(
        fleet.plane, fleet.namespace, "--kubeconfig", str(path), "--router-poll-seconds=0.5"
    ) as operator:
        fleet.apply("a")
        fleet.apply("unsupported", accelerator={"count": 2})
        fleet.settled("a")
        fleet.delete("service", "a")
        eventually(lambda: "Service" in fleet.children("a"))
        eventually(lambda: fleet.items("events"))
        fleet.merge("networkpolicy", "a", {"metadata": {"annotations": {"warmfleet.dev/applied": "edited"}}})
        time.sleep(2.0)

        logged = [line for line in operator.log() if line["level"] in {"warning", "error"}]
        # Right after the CustomResourceDefinition is made its storage may not be there yet.
        refused = [line for line in logged if line["event"] != "waiting for the API server"]

    assert refused == []
    writes = [
        write for write in fleet.plane.audit_writes(since) if write.user.endswith(":warmfleet-operator")
    ]
    assert writes
    assert {write.code for write in writes} <= {200, 201}


async def test_a_write_leaves_only_if_the_lead_is_held_up_to_the_last_moment(fleet: ModelNamespace) -> None:
    fleet.apply("kept")
    change = {"metadata": {"annotations": {"written": "yes"}}}

    async def writes_if_the_fence_closes_before(asked: int) -> int:
        """How many writes the API server has seen of one whose fence closes before it is asked that often."""
        times = iter(range(1, 10))
        fence = Fence(lambda: 0.0 if next(times) < asked else 2.0)
        fence.extend(1.0)
        since, agent = time.time(), f"fenced-{asked}"
        connected = Cluster.connected(fleet.plane.kubeconfig, fence, write_seconds=5.0, user_agent=agent)
        async with connected as cluster:
            with suppress(NotLeadingError):
                await cluster.merge(MODEL_DEPLOYMENT, fleet.namespace, "kept", change)
        return sum(write.user_agent == agent for write in fleet.plane.audit_writes(since))

    assert [await writes_if_the_fence_closes_before(asked) for asked in (1, 2, 3)] == [0, 0, 1]


async def test_a_watch_that_misses_what_lists_hold_is_noticed(fleet: ModelNamespace) -> None:
    """The store stands for a watch that delivers nothing after the first list."""
    fleet.apply("seen")
    fence = Fence()
    connected = Cluster.connected(
        fleet.plane.kubeconfig, fence, write_seconds=5.0, user_agent="warmfleet-test"
    )
    async with connected as cluster:
        store = Store([].append)

        async def feed(name: str) -> None:
            body = await cluster.read(MODEL_DEPLOYMENT, fleet.namespace, name)
            store.put(entry_of(MODEL_DEPLOYMENT, body))

        await feed("seen")
        sync = Sync(
            cluster=cluster,
            store=store,
            namespaces=[fleet.namespace],
            clock=fence.clock,
            period_seconds=0.4,
        )
        running = asyncio.create_task(sync.run())
        await asyncio.wait_for(sync.synced.wait(), 20)
        assert sync.dead_watches() == []

        await asyncio.to_thread(fleet.apply, "missed")
        await asyncio.to_thread(fleet.delete, "modeldeployment", "seen")
        await until(lambda: sync.dead_watches() == ["modeldeployments"])
        # What is gone is dropped all the same.
        await until(lambda: store.deployment(Key(fleet.namespace, "seen")) is None)

        await feed("missed")
        await until(lambda: sync.dead_watches() == [])
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until(holds, seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
