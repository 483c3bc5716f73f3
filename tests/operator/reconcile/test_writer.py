"""What the writer sends."""

from collections.abc import Mapping
from typing import Any

from warmfleet_contracts.names import FETCHING_LABEL
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.errors import GoneError, RefusedError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import DEPLOYMENT, POD, SERVICE, Kind
from warmfleet_operator.reconcile.plan import Labelling, Plan, Removal, Scaling
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
        if name == "refused":
            raise RefusedError("an admission webhook refuses it")
        return body(2)

    async def delete(self, kind: Kind, _namespace: str, name: str, _uid: str) -> None:
        raise RefusedError(f"{kind.name} {name} may not be deleted")


def writer_to(cluster: Pods, store: Store) -> Writer:
    return Writer(
        cluster=cluster,  # type: ignore[arg-type] # a part of it
        store=store,
        metrics=OperatorMetrics(),
        settings=OperatorSettings(release_namespace="warmfleet"),
    )


async def test_the_label_of_exactly_the_pod_that_has_its_model_is_removed() -> None:
    cluster, store = Pods(), Store(lambda _: None)
    store.put(entry_of(POD, body(1, **{FETCHING_LABEL: "true"})))
    assert [pod.fetching for pod in store.pods(M)] == [True]
    gone, has_model = Labelling("gone", "uid-0", fetches=False), Labelling("m-1", "uid-1", fetches=False)

    problem = await writer_to(cluster, store).carry_out(M, Plan(labellings=(gone, has_model)), "uid-m")

    assert problem is None
    assert cluster.merged[1] == (
        POD,
        "models",
        "m-1",
        {"metadata": {"uid": "uid-1", "labels": {FETCHING_LABEL: None}}},
    )
    assert [pod.fetching for pod in store.pods(M)] == [False]


async def test_a_pod_that_has_yet_to_fetch_gets_the_label() -> None:
    cluster, store = Pods(), Store(lambda _: None)

    await writer_to(cluster, store).carry_out(
        M, Plan(labellings=(Labelling("m-1", "uid-1", fetches=True),)), "uid-m"
    )

    changes = {"metadata": {"uid": "uid-1", "labels": {FETCHING_LABEL: "true"}}}
    assert cluster.merged == [(POD, "models", "m-1", changes)]


async def test_a_write_that_is_refused_stops_neither_the_others_nor_the_status() -> None:
    """As an error it would end the reconciliation before its status is written, each time."""
    cluster, store = Pods(), Store(lambda _: None)
    plan = Plan(
        removals=(Removal(SERVICE, "m", "uid-s", "is no longer wanted"),),
        scalings=(Scaling("refused", 3),),
        labellings=(
            Labelling("m-1", "uid-1", fetches=False),
            Labelling("refused", "uid-2", fetches=False),
        ),
    )

    problem = await writer_to(cluster, store).carry_out(M, plan, "uid-m")

    assert [(kind, name) for kind, _, name, _ in cluster.merged] == [
        (DEPLOYMENT, "refused"),
        (POD, "m-1"),
        (POD, "refused"),
    ]
    assert problem is not None
    assert problem.reason is Reason.OBJECT_REFUSED
    assert problem.message == "Pod refused: an admission webhook refuses it"
