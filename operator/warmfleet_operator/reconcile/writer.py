"""Carries plans out, and writes statuses and events when they say something new."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import ClusterError, GoneError, NotLeadingError, RefusedError
from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, kind_of
from warmfleet_operator.reconcile.plan import Manifest, Plan, controlled_by, foreign
from warmfleet_operator.status.events import event_of, turned
from warmfleet_operator.status.facts import Problem
from warmfleet_operator.status.status import Gauges, to_write
from warmfleet_operator.watch.store import Key, Store, entry_of

log = structlog.get_logger("warmfleet.operator")


class Writer:
    """The only caller of the cluster's writes for deployments."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        store: Store,
        metrics: OperatorMetrics,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._metrics = metrics
        self._identity = identity
        self._clock = clock
        self._gauges: dict[Key, Gauges] = {}

    def forget(self, key: Key) -> None:
        """The deployment is gone."""
        self._gauges.pop(key, None)

    async def carry_out(self, key: Key, plan: Plan, owner_uid: str) -> Problem | None:
        """Write what the plan says; what is refused does not keep the rest from being written.

        Raises:
            ClusterError: the API server cannot be asked; the rest of the plan waits.
        """
        problem = None
        if plan.conflicts:
            problem = Problem(Reason.OBJECT_CONFLICT, "; ".join(plan.conflicts))
        for removal in plan.removals:
            log.info(
                "delete", deployment=str(key), kind=removal.kind.name, name=removal.name, why=removal.why
            )
            try:
                await self._cluster.delete(removal.kind, key.namespace, removal.name, removal.uid)
            except GoneError:
                self._store.drop(removal.kind, Key(key.namespace, removal.name), removal.uid)
            self._metrics.writes.labels(removal.kind.name, "delete").inc()
        for manifest in plan.applies:
            problem = await self._apply(key, manifest, owner_uid) or problem
        for scaling in plan.scalings:
            log.info("scale", deployment=str(key), replicas=scaling.replicas)
            changes = {"spec": {"replicas": scaling.replicas}}
            answer = await self._cluster.merge(DEPLOYMENT, key.namespace, scaling.name, changes)
            self._metrics.writes.labels(DEPLOYMENT.name, "scale").inc()
            self._store.put(entry_of(DEPLOYMENT, answer))
        return problem

    async def say(self, key: Key, deployment: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        """Write the status if it says something new, and an event for each condition that turned."""
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
        for condition in turned(current.get("conditions") or (), chosen["conditions"]):
            log.info(
                "condition",
                deployment=str(key),
                type=condition["type"],
                status=condition["status"],
                reason=condition["reason"],
                message=condition["message"],
            )
            await self._record(event_of(deployment, condition, self._identity, time.time()))

    async def _apply(self, key: Key, manifest: Manifest, owner_uid: str) -> Problem | None:
        kind, name = kind_of(manifest), manifest["metadata"]["name"]
        known = self._store.version(kind, Key(key.namespace, name))
        try:
            if known is None:
                # It may be somebody's who never asked us to change it, and so carries no label of ours.
                try:
                    current = await self._cluster.read(kind, key.namespace, name)
                except GoneError:
                    pass
                else:
                    current = {**current, "kind": kind.name}
                    if not controlled_by(current, owner_uid):
                        return Problem(Reason.OBJECT_CONFLICT, foreign(current))
            log.info("apply", deployment=str(key), kind=kind.name, name=name)
            answer = await self._cluster.apply(manifest)
        except RefusedError as error:
            log.warning("refused", deployment=str(key), kind=kind.name, name=name, reason=str(error))
            self._metrics.errors.labels("refused").inc()
            return Problem(Reason.OBJECT_REFUSED, f"{kind.name} {name}: {error}")
        self._metrics.writes.labels(kind.name, "apply").inc()
        self._store.put(entry_of(kind, answer))
        return None

    async def _record(self, event: Mapping[str, Any]) -> None:
        """Events are for people: losing one loses nothing else."""
        try:
            await self._cluster.record(event)
        except NotLeadingError:
            raise
        except ClusterError as error:
            log.warning("event lost", reason=str(error))
        else:
            self._metrics.writes.labels("Event", "event").inc()
