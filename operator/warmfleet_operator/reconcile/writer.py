"""Executes plans, and writes statuses and events when they differ from what was written last."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from warmfleet_contracts.names import DELETION_COST_ANNOTATION, FETCHING_LABEL
from warmfleet_contracts.resources.conditions import RELEASE_CONFLICT, Reason
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import (
    ClusterError,
    ConflictError,
    GoneError,
    NotLeadingError,
    RefusedError,
)
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD, Kind, kind_of
from warmfleet_operator.objects.releases import Owner, conflict_prefix, release_of
from warmfleet_operator.reconcile.plan import (
    Labelling,
    Manifest,
    Plan,
    Removal,
    Scaling,
    conflict_message,
    controlled_by,
)
from warmfleet_operator.replicas.victims import Marking
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.conditions import release_condition, status_conditions
from warmfleet_operator.status.events import (
    changes_to_announce,
    decision_event_of,
    decisions_to_announce,
    event_of,
)
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.status import Gauges, to_write
from warmfleet_operator.watch.entry import Key, entry_of
from warmfleet_operator.watch.store import Store

log = structlog.get_logger("warmfleet.operator")


class Writer:
    """The only caller of the cluster's writes for deployments."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        store: Store,
        metrics: OperatorMetrics,
        settings: OperatorSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._gauges: dict[Key, Gauges] = {}

    def forget(self, key: Key) -> None:
        """Drop what is kept of a ModelDeployment that was deleted."""
        self._gauges.pop(key, None)

    async def carry_out(self, key: Key, plan: Plan, owner_uid: str) -> Problem | None:
        """Execute `plan`; a write that the API server refuses does not stop the others.

        Returns:
            The last conflict or refusal, None if there was none.

        Raises:
            ClusterError: the API server does not answer; the rest of the plan was not written.
        """
        problem = None
        if plan.conflicts:
            problem = Problem(Reason.OBJECT_CONFLICT, "; ".join(plan.conflicts))
        write: Awaitable[Problem | None]
        for marking in plan.markings:
            # Without its mark another pod may go than the one that is worth least: no reason to keep both.
            await self._unless_refused(key, POD, marking.name, self._mark(key, marking))
        for removal in plan.removals:
            write = self._delete(key, removal)
            problem = await self._unless_refused(key, removal.kind, removal.name, write) or problem
        for manifest in plan.applies:
            write = self._apply(key, manifest, owner_uid)
            name = manifest["metadata"]["name"]
            problem = await self._unless_refused(key, kind_of(manifest), name, write) or problem
        for scaling in plan.scalings:
            write = self._scale(key, scaling)
            problem = await self._unless_refused(key, DEPLOYMENT, scaling.name, write) or problem
        for pod in plan.labellings:
            write = self._label(key, pod)
            problem = await self._unless_refused(key, POD, pod.name, write) or problem
        return problem

    async def write_status(self, key: Key, deployment: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write `status` if it differs from the current one, and an event for each announced change."""
        now = self._clock()
        current = deployment.get("status") or {}
        gauges = self._gauges.setdefault(key, Gauges(now))
        chosen = to_write(status, current, gauges, now)
        if chosen is None:
            return
        metadata = deployment["metadata"]
        try:
            answer = await self._cluster.apply_status(key.namespace, key.name, metadata["uid"], chosen)
        except GoneError:
            return
        self._gauges[key] = Gauges(now)
        self._metrics.writes.labels(MODEL_DEPLOYMENT.name, "status").inc()
        self._store.put(entry_of(MODEL_DEPLOYMENT, answer))
        for condition in changes_to_announce(current.get("conditions") or (), chosen["conditions"]):
            log.info(
                "condition",
                deployment=str(key),
                type=condition["type"],
                status=condition["status"],
                reason=condition["reason"],
                message=condition["message"],
            )
            await self._record(event_of(deployment, condition, self._settings.identity, time.time()))
        for decision in decisions_to_announce(current, chosen):
            log.info("scaling decision", deployment=str(key), decision=decision)
            await self._record(decision_event_of(deployment, decision, self._settings.identity, time.time()))

    async def write_conflict(self, key: Key, deployment: Mapping[str, Any], owner: Owner | None) -> None:
        """Report that another release owns it, or with None end what this release has reported.

        A report of a third release stays: two would overwrite each other's.
        """
        now, release, metadata = time.time(), self._settings.release, deployment["metadata"]
        conditions = (deployment.get("status") or {}).get("conditions") or ()
        known = [item for item in conditions if item["type"] == RELEASE_CONFLICT]
        if any(not item["message"].startswith(conflict_prefix(release)) for item in known):
            return
        found = [] if owner is None else [release_condition(owner, release)]
        chosen = status_conditions(found, known, metadata["generation"], now)
        if chosen == known:
            return
        try:
            answer = await self._cluster.apply_conflict(key.namespace, key.name, metadata["uid"], chosen)
        except GoneError:
            return
        self._metrics.writes.labels(MODEL_DEPLOYMENT.name, "status").inc()
        self._store.put(entry_of(MODEL_DEPLOYMENT, answer))
        announced = {item["message"] for item in known}
        for condition in chosen:
            if condition["message"] not in announced:
                log.warning("left to another release", deployment=str(key), reason=condition["message"])
                await self._record(event_of(deployment, condition, self._settings.identity, now))

    async def _unless_refused(
        self, key: Key, kind: Kind, name: str, write: Awaitable[Problem | None]
    ) -> Problem | None:
        """Await one write of a plan; its refusal is a problem that the status reports."""
        try:
            return await write
        except RefusedError as error:
            log.warning("refused", deployment=str(key), kind=kind.name, name=name, reason=str(error))
            self._metrics.errors.labels("refused").inc()
            return Problem(Reason.OBJECT_REFUSED, f"{kind.name} {name}: {error}")

    async def _delete(self, key: Key, removal: Removal) -> None:
        log.info("delete", deployment=str(key), kind=removal.kind.name, name=removal.name, why=removal.why)
        try:
            await self._cluster.delete(removal.kind, key.namespace, removal.name, removal.uid)
        except GoneError:
            self._store.drop(removal.kind, Key(key.namespace, removal.name), removal.uid)
        self._metrics.writes.labels(removal.kind.name, "delete").inc()

    async def _apply(self, key: Key, manifest: Manifest, owner_uid: str) -> Problem | None:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        if self._store.version(kind, Key(key.namespace, name)) is None:
            # An object of another owner carries no label of ours, so the store does not hold it.
            try:
                current = await self._cluster.read(kind, key.namespace, name)
            except GoneError:
                pass
            else:
                current = {**current, "kind": kind.name}
                if not controlled_by(current, owner_uid):
                    return Problem(Reason.OBJECT_CONFLICT, conflict_message(current))
                if release_of(current) not in {None, *self._settings.own_releases}:
                    # Nothing is reported yet: the store will hold the objects of that release soon.
                    raise ConflictError(f"{kind.name} {name} was just made by another release")
        log.info("apply", deployment=str(key), kind=kind.name, name=name)
        answer = await self._cluster.apply(manifest)
        self._metrics.writes.labels(kind.name, "apply").inc()
        self._store.put(entry_of(kind, answer))
        return None

    async def _scale(self, key: Key, scaling: Scaling) -> None:
        log.info("scale", deployment=str(key), replicas=scaling.replicas)
        changes: dict[str, Any] = {"spec": {"replicas": scaling.replicas}}
        if scaling.annotations:
            changes["metadata"] = {"annotations": dict(scaling.annotations)}
        answer = await self._cluster.merge(DEPLOYMENT, key.namespace, scaling.name, changes)
        self._metrics.writes.labels(DEPLOYMENT.name, "scale").inc()
        self._store.put(entry_of(DEPLOYMENT, answer))

    async def _mark(self, key: Key, marking: Marking) -> None:
        log.info("mark", deployment=str(key), pod=marking.name, deletion_cost=marking.cost)
        cost = None if marking.cost is None else str(marking.cost)
        await self._change_pod(key, marking, "mark", {"annotations": {DELETION_COST_ANNOTATION: cost}})

    async def _label(self, key: Key, pod: Labelling) -> None:
        fetching = "true" if pod.fetches else None
        await self._change_pod(key, pod, "label", {"labels": {FETCHING_LABEL: fetching}})

    async def _change_pod(
        self, key: Key, pod: Marking | Labelling, verb: str, metadata: Mapping[str, Any]
    ) -> None:
        """Merge `metadata` into that pod's, and into no other's that has its name by now."""
        try:
            changes = {"metadata": {"uid": pod.uid, **metadata}}
            answer = await self._cluster.merge(POD, key.namespace, pod.name, changes)
        except GoneError:
            return
        self._metrics.writes.labels(POD.name, verb).inc()
        self._store.put(entry_of(POD, answer))

    async def _record(self, event: Mapping[str, Any]) -> None:
        """Post an event; nothing depends on events, so a failure is only logged."""
        try:
            await self._cluster.record(event)
        except NotLeadingError:
            raise
        except ClusterError as error:
            log.warning("event lost", reason=str(error))
        else:
            self._metrics.writes.labels("Event", "event").inc()
