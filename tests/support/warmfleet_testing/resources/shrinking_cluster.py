"""A ModelDeployment, its objects and pods as values, and a ReplicaSet that deletes by Kubernetes' rule.

The ReplicaSet sees a lower number at once and marks late: within two seconds, as a busy controller may.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmfleet_contracts.cache.fleet_totals import FleetTotals
from warmfleet_contracts.names import DELETION_COST_ANNOTATION, REVISION_LABEL
from warmfleet_operator.hub.commits import HubCommits
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD, Kind, kind_of
from warmfleet_operator.reconcile.reconcile import Reconciler
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.replicas.shrinks import Shrinks
from warmfleet_operator.routers.fleet import FleetView
from warmfleet_operator.routers.hit_rates import HitRates
from warmfleet_operator.scaling.advice import Advice
from warmfleet_operator.scaling.decision import ScalingDecision
from warmfleet_operator.scaling.signals import Reading
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.replica_state import DeploymentScale
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store
from warmfleet_testing.resources.metrics_page import metric
from warmfleet_testing.resources.observations import advice, decided, deployment
from warmfleet_testing.resources.scaling_signals import replica
from warmfleet_testing.resources.stored_objects import StoredObjects

M: Final = Key("models", "m")
LATE_SECONDS: Final = 1.99
"""By which the ReplicaSet learns of a mark."""


class KilledError(Exception):
    """The operator's process ends here."""


class ShrinkingCluster:
    """The API server and the ReplicaSet's controller; `values` are what only each pod holds."""

    def __init__(
        self,
        values: Sequence[float],
        unready: Sequence[int] = (),
        without_node: Sequence[int] = (),
        **spec: Any,
    ) -> None:
        self.now = 100.0
        self.values = {f"uid-m-{number}": value for number, value in enumerate(values)}
        self.deleted: list[str] = []
        """Uids of the pods that the ReplicaSet has deleted, in its order."""
        self.numbers: list[int] = []
        """Every number of replicas that was written to the Deployment."""
        self.kill_at: tuple[int, bool] | None = None
        """The write, counted from 0, at which the operator ends, and whether it is carried out before."""
        self.handed_over: list[tuple[str, ...]] = []
        """The victims of each handover that was begun."""
        self.handover_ends = asyncio.Event()
        self.handover_ends.set()
        self.writes = 0
        """By the operators so far, but for statuses."""
        self.held = 0
        """Replicas that requests need; with any, the policy lets none go."""
        self._objects = StoredObjects()
        self._marks: list[tuple[float, str, str | None]] = []
        self._objects.put(MODEL_DEPLOYMENT, deployment(replicas=len(values), **spec))
        for number in range(len(values)):
            made = _pod_without_node if number in without_node else _pod
            self._objects.put(POD, made(number, ready=number not in unready))

    def objects(self) -> list[tuple[Kind, dict[str, Any]]]:
        """All of them, by kind."""
        return self._objects.all()

    def edit(self, **spec: Any) -> None:
        """Change fields of the ModelDeployment's spec."""
        body = self._objects.get(MODEL_DEPLOYMENT, "m")
        self._objects.put(MODEL_DEPLOYMENT, {**body, "spec": {**body["spec"], **spec}})

    def remove(self, kind: Kind) -> None:
        """Delete the object of this kind, as a user does."""
        del self._objects[kind, "m"]

    def put(self, kind: Kind, body: dict[str, Any]) -> None:
        """Create or change an object, as a user does."""
        self._objects.put(kind, body)

    def workers(self) -> dict[str, Any]:
        """The Deployment."""
        return self._objects.get(DEPLOYMENT, "m")

    def live(self) -> set[str]:
        """Uids of the pods that are left."""
        return self.values.keys() - set(self.deleted)

    def pass_time(self, seconds: float) -> None:
        """The clock goes on, and controllers act."""
        self._delete_pods()
        self.now += seconds

    async def read(self, kind: Kind, _namespace: str, name: str) -> dict[str, Any]:
        return self._objects.get(kind, name)

    async def apply(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return self._write(kind_of(manifest), dict(manifest))

    async def apply_status(
        self, _namespace: str, _name: str, _uid: str, status: Mapping[str, Any]
    ) -> dict[str, Any]:
        return self._objects.put(
            MODEL_DEPLOYMENT, {**self._objects.get(MODEL_DEPLOYMENT, "m"), "status": dict(status)}
        )

    async def apply_conflict(self, *_: object) -> dict[str, Any]:
        raise AssertionError("no other release is here")

    async def merge(
        self, kind: Kind, _namespace: str, name: str, changes: Mapping[str, Any]
    ) -> dict[str, Any]:
        assert kind is POD
        body = self._objects.get(kind, name)
        annotations = {
            **(body["metadata"].get("annotations") or {}),
            **changes["metadata"].get("annotations", {}),
        }
        kept = {key: value for key, value in annotations.items() if value is not None}
        return self._write(kind, {**body, "metadata": {**body["metadata"], "annotations": kept}})

    async def hand_over(
        self, deployment: str, victims: Sequence[str], *, seconds: float, payback_seconds: float
    ) -> None:
        """Routers are done once `handover_ends` is set."""
        del deployment, seconds, payback_seconds
        self.handed_over.append(tuple(victims))
        await self.handover_ends.wait()

    async def record(self, _event: Mapping[str, Any]) -> None:
        """Events are not looked at."""

    def _write(self, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        number, self.writes = self.writes, self.writes + 1
        if self.kill_at == (number, False):
            raise KilledError
        written = self._objects.put(kind, body)
        if kind is POD:
            cost = (body["metadata"].get("annotations") or {}).get(DELETION_COST_ANNOTATION)
            self._marks.append((self.now, body["metadata"]["uid"], cost))
        if kind is DEPLOYMENT and self.numbers[-1:] != [body["spec"]["replicas"]]:
            if not self.numbers:
                self._label_pods(body["spec"]["template"]["metadata"]["labels"][REVISION_LABEL])
            self.numbers.append(body["spec"]["replicas"])
            self._delete_pods()  # as soon as it can
        if self.kill_at == (number, True):
            raise KilledError
        return written

    def _label_pods(self, revision: str) -> None:
        """They are of the first template, and no later one replaces them."""
        for kind, body in self.objects():
            if kind is POD:
                labels = {**body["metadata"]["labels"], REVISION_LABEL: revision}
                self._objects.put(kind, {**body, "metadata": {**body["metadata"], "labels": labels}})

    def _delete_pods(self) -> None:
        if (DEPLOYMENT, "m") not in self._objects:
            return
        costs = {uid: int(cost or 0) for at, uid, cost in self._marks if self.now - at >= LATE_SECONDS}
        pods = [body for kind, body in self.objects() if kind is POD]
        number = self.workers()["spec"]["replicas"]

        def order(pod: dict[str, Any]) -> tuple[bool, int, float]:
            created = float(pod["metadata"]["name"].rpartition("-")[2])  # the newest has the highest number
            return _is_ready(pod), costs.get(pod["metadata"]["uid"], 0), -created

        for pod in sorted(pods, key=order)[: max(0, len(pods) - number)]:
            self.deleted.append(pod["metadata"]["uid"])
            del self._objects[POD, pod["metadata"]["name"]]


class _Totals:
    routers = 1

    def __init__(self, cluster: ShrinkingCluster) -> None:
        self._cluster = cluster

    async def read(self) -> None:
        """The values do not change."""

    def readings(self) -> tuple[Reading, ...]:
        values = self._cluster.values.items()
        reports = tuple(replica(uid, unique_value_tokens_per_second=value) for uid, value in values)
        return (Reading(FleetTotals(router="a", uptime_seconds=1e6, replicas=reports)),)


class _Keys:
    async def ensure_namespace(self, _namespace: str) -> None:
        """They are there."""


class _NoRouters:
    view = FleetView(polled=True)


class _Advisor:
    """Decides for one replica fewer than there are until `lowest` is reached; for more if requests wait."""

    def __init__(self, cluster: ShrinkingCluster, lowest: int) -> None:
        self._cluster = cluster
        self._lowest = lowest

    def follow(self, *_: object, **__: object) -> None:
        """Its advice is the same for every policy."""

    def forget(self, _key: Key) -> None:
        """As above."""

    def advice(self, _key: Key) -> Advice | None:
        if (DEPLOYMENT, "m") not in {
            (kind, body["metadata"]["name"]) for kind, body in self._cluster.objects()
        }:
            return None
        current = self._cluster.workers()["spec"]["replicas"]
        wanted = max(current, self._cluster.held) if self._cluster.held else max(self._lowest, current - 1)
        return advice(wanted, decided(wanted, from_replicas=current))

    def decision(self, key: Key, _scale: DeploymentScale) -> ScalingDecision | None:
        made = self.advice(key)
        return made.latest if made is not None else None


class OperatorOf:
    """One life of an operator: what it remembers ends with it."""

    def __init__(self, cluster: ShrinkingCluster, lowest: int = 1, **settings: Any) -> None:
        self._cluster = cluster
        self.metrics = OperatorMetrics()
        self.store = Store(lambda _: None)
        made = OperatorSettings(release_namespace="warmfleet", **settings)
        self.resolved = asyncio.Event()
        """Set when the hub has answered about a branch, or has not."""
        self.commits = HubCommits[Key](
            cluster=cluster,  # type: ignore[arg-type] # a part of it
            settings=made,
            on_change=lambda _: self.resolved.set(),
            clock=lambda: cluster.now,
        )
        writer = Writer(
            cluster=cluster,  # type: ignore[arg-type] # a part of it
            store=self.store,
            metrics=self.metrics,
            settings=made,
        )
        self._reconciler = Reconciler(
            store=self.store,
            writer=writer,
            key_secrets=_Keys(),  # type: ignore[arg-type] # a part of it
            commits=self.commits,
            routers=_NoRouters(),  # type: ignore[arg-type] # a part of it
            hits=HitRates(),
            advisor=_Advisor(cluster, lowest),  # type: ignore[arg-type] # a part of it
            shrinks=Shrinks(
                totals=_Totals(cluster),
                handover=cluster,
                on_handed_over=lambda _: None,
                metrics=self.metrics,
                clock=lambda: cluster.now,
            ),
            settings=made,
        )

    async def reconcile(self) -> float | None:
        """Observe everything and reconcile once; returns when the next one is due."""
        listed = self._cluster.objects()
        for kind, body in listed:
            self.store.put(entry_of(kind, body))
        uids = {body["metadata"]["uid"] for _, body in listed}
        for pod in self.store.pods(M):
            if pod.uid not in uids:
                self.store.drop(POD, Key(M.namespace, pod.name), pod.uid)
        again = await self._reconciler.reconcile(M)
        await asyncio.sleep(0)  # a handover begins,
        await asyncio.sleep(0)  # and ends
        return again

    def went(self, choice: str) -> float:
        """Pods that went after a lower number: `ours`, or `other`."""
        return metric(self.metrics, f'warmfleet_operator_shrink_victims_total{{choice="{choice}"}}')


def _pod(number: int, *, ready: bool) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"m-{number}",
            "namespace": M.namespace,
            "uid": f"uid-m-{number}",
            "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
            "labels": {"warmfleet.dev/model-deployment": "m"},
        },
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def _pod_without_node(number: int, **_: object) -> dict[str, Any]:
    """No node has fitted since last year."""
    verdict = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    waiting = {"phase": "Pending", "conditions": [{**verdict, "lastTransitionTime": "2025-01-01T00:00:00Z"}]}
    return {**_pod(number, ready=False), "spec": {}, "status": waiting}


def _is_ready(pod: Mapping[str, Any]) -> bool:
    return {"type": "Ready", "status": "True"} in pod["status"]["conditions"]
