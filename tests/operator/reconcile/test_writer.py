"""What the writer sends."""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.names import FETCHING_LABEL
from warmfleet_operator.errors import GoneError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import POD, Kind
from warmfleet_operator.reconcile.plan import Fetched, Plan
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store

M = Key("models", "m")


def body(version: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "m-1",
            "namespace": "models",
            "uid": "uid-1",
            "resourceVersion": str(version),
            "labels": {"warmfleet.dev/model-deployment": "m", **labels},
        },
        "spec": {},
    }


class Pods:
    """The part of a cluster that pods are changed in."""

    def __init__(self) -> None:
        self.merged: list[tuple[Kind, str, str, Mapping[str, Any]]] = []

    async def merge(
        self, kind: Kind, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        self.merged.append((kind, namespace, name, changes))
        if name == "gone":
            raise GoneError(name)
        return body(2)


async def test_the_label_of_exactly_the_pod_that_has_its_model_is_removed() -> None:
    cluster, store = Pods(), Store(lambda _: None)
    store.put(entry_of(POD, body(1, **{FETCHING_LABEL: "true"})))
    assert [pod.fetching for pod in store.pods(M)] == [True]
    writer = Writer(
        cluster=cluster,  # type: ignore[arg-type] # a part of it
        store=store,
        metrics=OperatorMetrics(),
        settings=OperatorSettings(release_namespace="warmfleet"),
    )

    problem = await writer.carry_out(
        M, Plan(fetched=(Fetched("gone", "uid-0"), Fetched("m-1", "uid-1"))), "uid-m"
    )

    assert problem is None
    assert cluster.merged[1] == (
        POD,
        "models",
        "m-1",
        {"metadata": {"uid": "uid-1", "labels": {FETCHING_LABEL: None}}},
    )
    assert [pod.fetching for pod in store.pods(M)] == [False]
