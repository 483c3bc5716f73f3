"""Which routers the operator asks."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from warmfleet_operator import cluster as cluster_module
from warmfleet_operator.cluster import PAGE_SIZE, Cluster
from warmfleet_operator.routers.poller import RouterPoller
from warmfleet_operator.routers.totals import TotalsReader
from warmfleet_operator.scaling.signals import MAX_ROUTERS
from warmfleet_operator.settings import OperatorSettings
from warmfleet_runtime.kubernetes.errors import ApiServerError

SCHEMA = Path(__file__).parents[3] / "charts" / "warmfleet" / "values.schema.json"
MANY = 2 * PAGE_SIZE
LABELS = {"warmfleet.dev/component": "router", "app.kubernetes.io/instance": "warmfleet"}


def router(uid: str, *, ready: bool = True, phase: str = "Running", drains: bool = False) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": None}]
    deleted = {"deletionTimestamp": "2026-01-01T00:05:00Z"} if drains else {}
    status = {"phase": phase, "podIP": f"10.0.0.{uid}", "conditions": conditions}
    return {"metadata": {"uid": uid, **deleted}, "status": status}


class ApiServer:
    """The API server's list of router pods, page by page, or the error instead of it."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods: tuple[dict[str, Any], ...] = pods
        self.fails = False
        self.pages = 0

    async def read(self, path: str, query: Mapping[str, str], *, accept: str = "") -> bytes:
        del accept
        if self.fails:
            raise ApiServerError("cannot be reached", message="connection refused")
        self.pages += 1
        assert path == "/api/v1/namespaces/warmfleet/pods"
        assert query["labelSelector"] == ",".join(f"{key}={value}" for key, value in LABELS.items())
        phase = query.get("fieldSelector", "").removeprefix("status.phase=")
        found = [pod for pod in self.pods if pod["status"]["phase"] == phase]
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        more = {"continue": str(begin + limit)} if begin + limit < len(found) else {}
        page = {"metadata": {"resourceVersion": "1", **more}, "items": found[begin : begin + limit]}
        return json.dumps(page).encode()


def poller_of(server: ApiServer) -> RouterPoller:
    return RouterPoller(
        cluster=Cluster(server, guard=None, write_seconds=1.0),  # type: ignore[arg-type] # it only reads
        client=None,  # type: ignore[arg-type] # no router is asked
        settings=OperatorSettings(release_namespace="warmfleet", router_pod_labels=LABELS),
        on_change=lambda *_: None,
    )


def test_every_router_of_a_chart_is_asked_and_one_beyond_counts_as_missing() -> None:
    router_values = json.loads(SCHEMA.read_text())["properties"]["router"]["properties"]
    autoscaling = router_values["autoscaling"]["properties"]
    most = max(router_values["replicas"]["maximum"], autoscaling["maxReplicas"]["maximum"])
    poller = poller_of(ApiServer(*[router(str(number)) for number in range(most + 1)]))
    reader = TotalsReader(routers=poller, client=None)  # type: ignore[arg-type]

    asyncio.run(poller.find())

    assert len(poller.addresses) == most == MAX_ROUTERS
    assert reader.routers == most + 1


def test_a_router_that_has_just_got_ready_is_found_between_polls_and_an_error_forgets_none() -> None:
    server = ApiServer(router("1"), router("2", ready=False))
    poller = poller_of(server)

    asyncio.run(poller.find())
    first = dict(poller.addresses)
    server.pods = (router("1"), router("2"))
    asyncio.run(poller.find())
    server.fails = True
    asyncio.run(poller.find())

    assert first == {"1": "10.0.0.1"}
    assert poller.addresses == {"1": "10.0.0.1", "2": "10.0.0.2"}
    assert not poller.view.polled


def test_a_router_behind_pages_of_draining_ones_is_asked() -> None:
    draining = [router(str(number), drains=True) for number in range(MANY)]
    poller = poller_of(ApiServer(*draining, router("one"), router("two")))

    asyncio.run(poller.find())

    assert set(poller.addresses) == {"one", "two"}
    assert poller.ready_routers == 2


def test_pods_that_have_ended_are_not_even_listed() -> None:
    evicted = [router(str(number), ready=False, phase="Failed") for number in range(MANY)]
    server = ApiServer(*evicted, router("one"))
    poller = poller_of(server)

    asyncio.run(poller.find())

    assert set(poller.addresses) == {"one"}
    assert server.pages == 1


def test_more_pods_than_can_be_read_are_an_error_and_not_all_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MAX_SELECTED", MANY)
    poller = poller_of(ApiServer(*[router(str(number)) for number in range(MANY + 1)]))

    asyncio.run(poller.poll())

    assert "more than 200 objects are selected" in poller.view.problem
    assert poller.ready_routers == 0
