"""The operator behind an API server that refuses, forgets, throttles, fails and hangs up."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from warmfleet_testing.cluster.api_fault_proxy import (
    READS,
    WRITES,
    ApiFault,
    ApiFaultProxy,
    running_api_fault_proxy,
)
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import CHILDREN, ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually, running_operator
from warmfleet_testing.documents.fault_table import losses

WATCHES = frozenset({"watch"})
STORMS = {
    "conflicts": ApiFault(verbs=WRITES, status=409, ratio=0.5),
    "throttling": ApiFault(verbs=READS | WRITES, status=429, ratio=0.3, retry_after_seconds=1),
    "errors": ApiFault(verbs=READS | WRITES, status=500, ratio=0.3),
    "resets": ApiFault(verbs=READS | WRITES, status=0, ratio=0.3),
    "lost-answers": ApiFault(verbs=WRITES, status=0, ratio=0.5, after=True),
    "expired-watches": ApiFault(verbs=WATCHES, status=410, ratio=0.5, in_stream=True),
    "refused-watches": ApiFault(verbs=WATCHES, status=410, at_most=1),
}


class World(NamedTuple):
    fleet: ModelNamespace
    proxy: ApiFaultProxy
    operator: OperatorProcess


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("proxy")
    # There are no nodes: after two minutes that would be reported of the first storm's pods, in a later
    # storm.
    flags = ("--sync-seconds=2", "--lease-retry-seconds=1", "--no-room-seconds=3600")
    with (
        model_namespace(control_plane, "faults-api-server") as fleet,
        running_api_fault_proxy(control_plane.kubeconfig, folder) as proxy,
        running_operator(
            fleet.plane, fleet.namespace, "--kubeconfig", str(proxy.kubeconfig), *flags
        ) as operator,
    ):
        operator.wait_until_leading()
        yield World(fleet, proxy, operator)


def shown(fleet: ModelNamespace, name: str, replicas: int) -> bool:
    deployment = fleet.get("deployment", name)["spec"]["replicas"]
    summary: str = fleet.get("modeldeployment", name)["status"]["readySummary"]
    return (deployment, summary) == (replicas, f"0/{replicas}")


@pytest.mark.parametrize("storm", STORMS)
def test_an_api_server_that_fails_now_and_then_costs_time_and_nothing_else(world: World, storm: str) -> None:
    allowed = losses("test_an_api_server_that_fails_now_and_then_costs_time_and_nothing_else")
    fleet, proxy, operator = world
    before = len(proxy.requests)
    began = time.monotonic()

    proxy.faults = [STORMS[storm]]
    proxy.cut_open_watches()
    fleet.apply(storm, replicas=2)
    fleet.settled(storm)
    fleet.apply(storm, replicas=3)
    eventually(lambda: shown(fleet, storm, 3))
    if "watches" in storm:
        eventually(lambda: proxy.hits(STORMS[storm].status))
    proxy.faults = []

    took = time.monotonic() - began
    requests = len(proxy.requests) - before
    assert took <= allowed["seconds until it is done"]
    assert requests <= allowed["requests"], Counter(seen.verb for seen in proxy.requests[before:])
    label = {"labelSelector": f"warmfleet.dev/model-deployment={storm}"}
    children = Counter({kind: len(fleet.items(kind, **label)) for kind in CHILDREN.values()})
    assert children.pop("networkpolicies") - len(("workers", "fetching")) == allowed["objects made twice"]
    assert children.total() - len(children) == allowed["objects made twice"]
    eventually(lambda: fleet.has(storm, "Stalled", "False"))
    # Watches that were refused begin anew after two seconds; three behind lists are too many here.
    eventually(lambda: operator.get("/livez").status_code == 200)
    assert operator.process.poll() is None
    # A storm leaves nothing behind that would have to be put right. What it held up is reported within
    # seconds: a watch waits up to five of them for its next try, and routers are asked every ten.
    time.sleep(2.0)
    eventually(fleet.at_rest)
    since = time.time()
    fleet.touch(storm)
    time.sleep(1.0)
    assert len(fleet.writes(since)) == allowed["objects left wrong"]


def test_a_watch_that_is_silent_and_not_closed_fails_liveness_and_a_restart_makes_good(world: World) -> None:
    allowed = losses("test_a_watch_that_is_silent_and_not_closed_fails_liveness_and_a_restart_makes_good")
    fleet, proxy, operator = world
    eventually(lambda: operator.get("/livez").status_code == 200)
    fleet.apply("seen")
    fleet.settled("seen")  # by watches that are open

    def is_dead() -> bool:
        """Other watches may miss something, too, and be called dead first."""
        answer = operator.get("/livez")
        return answer.status_code == 503 and "modeldeployments" in answer.json()["status"]

    proxy.stall_open_watches()
    began = time.monotonic()
    fleet.apply("unseen")
    eventually(is_dead)

    assert time.monotonic() - began <= allowed["seconds until liveness fails"]
    assert operator.stop() == 0
    with running_operator(fleet.plane, fleet.namespace, "--kubeconfig", str(proxy.kubeconfig)) as again:
        fleet.settled("unseen")
        assert again.get("/livez").status_code == 200
