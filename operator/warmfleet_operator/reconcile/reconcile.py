"""One look at one ModelDeployment: observe, desire, plan, write, say. Nothing is remembered of the last."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import ENGINE_CONTAINER
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.ownership import Claim, owners
from warmfleet_operator.desired.errors import SpecError, UnsupportedError
from warmfleet_operator.desired.model import is_fetched
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.desired.observed import ObservedDeployment
from warmfleet_operator.desired.worker import replicas
from warmfleet_operator.errors import KeysMissingError, RefusedError
from warmfleet_operator.keys import Keys
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, kind_of
from warmfleet_operator.objects.rollouts import (
    Cause,
    annotated,
    blocking,
    cause_of,
    spec_hash,
    template_revision,
)
from warmfleet_operator.objects.served_names import request_names, served_names
from warmfleet_operator.reconcile.plan import Manifest, Plan, plan_changes
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.conditions import soonest_change_seconds
from warmfleet_operator.status.facts import Facts, Problem
from warmfleet_operator.status.hits import HitRates
from warmfleet_operator.status.routers import Routers
from warmfleet_operator.status.status import status_of
from warmfleet_operator.watch.store import Key, Store

WAIT_SECONDS: Final = 5.0
"""Between two looks at something that ends elsewhere."""

log = structlog.get_logger("warmfleet.operator")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a ModelDeployment asks for."""

    objects: tuple[Manifest, ...] = ()
    replicas: int = 0
    image: str = ""
    is_fetched: bool = True
    problem: Problem | None = None
    """Why nothing can be made of it; then the objects are empty and mean nothing."""


class Reconciler:
    """Brings one deployment at a time to what it asks for. Writes through `writer` only."""

    def __init__(
        self,
        *,
        store: Store,
        writer: Writer,
        keys: Keys,
        routers: Routers,
        hits: HitRates,
        settings: OperatorSettings,
    ) -> None:
        self._store = store
        self._writer = writer
        self._keys = keys
        self._routers = routers
        self._hits = hits
        self._settings = settings
        self._upgrade_slot = asyncio.Lock()
        self.waiting_for_routers: set[Key] = set()
        """Those with ready workers that no router is known to send to: routers are worth asking sooner."""

    async def reconcile(self, key: Key) -> float | None:
        """Look at `key`; returns after how many seconds to look again, None = when something is heard.

        Raises:
            ClusterError: not everything could be written; look again soon.
        """
        deployment = self._store.deployment(key)
        if deployment is None or "deletionTimestamp" in deployment["metadata"]:
            self._writer.forget(key)
            self.waiting_for_routers.discard(key)
            return None  # its children follow it by their owner references
        wanted = wanted_by(deployment, self._settings)
        facts = Facts(
            deployment,
            time.time(),
            no_room_seconds=self._settings.no_room_seconds,
            desired_replicas=wanted.replicas,
            image=wanted.image,
            is_fetched=wanted.is_fetched,
            job_wanted=any(kind_of(manifest) is JOB for manifest in wanted.objects),
            problem=wanted.problem,
        )
        again = None
        if wanted.problem is None:
            facts, again = await self._carry_out(key, facts, wanted)
        facts = self._observed(key, facts)
        if unknown_to_routers(facts):
            self.waiting_for_routers.add(key)
        else:
            self.waiting_for_routers.discard(key)
        await self._writer.say(key, deployment, status_of(facts))
        if facts.problem is not None and facts.problem.reason in {
            Reason.OBJECT_REFUSED,
            Reason.OBJECT_CONFLICT,
            Reason.CONFIGURATION_MISSING,
        }:
            raise RefusedError(facts.problem.message)
        soon = soonest_change_seconds(facts)
        return min((seconds for seconds in (again, soon) if seconds is not None), default=None)

    async def _carry_out(self, key: Key, facts: Facts, wanted: Wanted) -> tuple[Facts, float | None]:
        deployment = facts.deployment
        try:
            await self._keys.ensure_namespace(key.namespace)
        except (KeysMissingError, RefusedError) as error:
            return replace(facts, problem=Problem(Reason.CONFIGURATION_MISSING, str(error))), None
        plan, waits_for = await self._planned(key, deployment, wanted)
        if plan is None:
            async with self._upgrade_slot:  # two that may begin must not both begin
                plan, waits_for = await self._planned(key, deployment, wanted, slot_held=True)
                assert plan is not None
                problem = await self._writer.carry_out(key, plan, deployment["metadata"]["uid"])
        else:
            problem = await self._writer.carry_out(key, plan, deployment["metadata"]["uid"])
        waiting = bool(plan.pending) or waits_for is not None
        return (
            replace(facts, problem=problem, waits_for=str(waits_for or "")),
            WAIT_SECONDS if waiting else None,
        )

    async def _planned(
        self, key: Key, deployment: Mapping[str, Any], wanted: Wanted, *, slot_held: bool = False
    ) -> tuple[Plan | None, Key | None]:
        """The plan, and whom it waits for; no plan if it would begin an upgrade without the slot."""
        observed = self._store.children(key)
        workers = next((child for child in observed if kind_of(child) is DEPLOYMENT), None)
        spec = spec_hash(deployment["spec"])
        objects: list[Manifest] = []
        waits_for: Key | None = None
        for manifest in wanted.objects:
            if kind_of(manifest) is not DEPLOYMENT:
                objects.append(manifest)
                continue
            cause = cause_of(manifest, workers, spec)
            objects.append(annotated(manifest, cause, spec))
            if workers is None or cause is Cause.SPEC:
                continue
            if template_revision(manifest) == template_revision(workers):
                continue  # its upgrade has begun already
            waits_for = blocking(key, self._store.upgrades())
            if waits_for is None and not slot_held:
                return None, None
        uid = deployment["metadata"]["uid"]
        frozen = waits_for is not None
        return plan_changes(objects, observed, uid, now_seconds=time.time(), frozen=frozen), waits_for

    def _observed(self, key: Key, facts: Facts) -> Facts:
        """The facts with what the cluster and the routers say after the writes."""
        children = self._store.children(key)
        claim, taken = self._rival(facts.deployment)
        return replace(
            facts,
            workers=next((child for child in children if kind_of(child) is DEPLOYMENT), None),
            job=next((child for child in children if kind_of(child) is JOB), None),
            pods=tuple(sorted(self._store.pods(key), key=lambda pod: (pod.created_seconds, pod.name))),
            fleet=self._routers.view,
            hit_percent=self._hits.percent(request_names(facts.deployment)),
            rival=claim,
            taken_name=taken,
            url=f"{self._settings.router_url}/v1",
        )

    def _rival(self, deployment: Mapping[str, Any]) -> tuple[Claim | None, str]:
        """The deployment that owns one of its names, and that name."""
        owner = owners(self._store.claims())
        for served in served_names(deployment):
            holder = owner.get(served)
            if holder is not None and holder.uid != deployment["metadata"]["uid"]:
                return holder, served
        return None, ""


def unknown_to_routers(facts: Facts) -> bool:
    """Whether a worker is ready and some router that was asked does not know it as ready."""
    fleet = facts.fleet
    ready = [pod.uid for pod in facts.pods if pod.live and pod.ready and not pod.job]
    return any(len(fleet.ready_in([uid])) < max(fleet.answering, 1) for uid in ready)


def wanted_by(deployment: Mapping[str, Any], settings: OperatorSettings) -> Wanted:
    """What a ModelDeployment of the API server asks for, or why nothing can be made of it."""
    try:
        observed = ObservedDeployment.from_object(deployment)
    except ManifestError as error:
        return Wanted(problem=Problem(Reason.INVALID_SPEC, str(error)))
    number, fetched = replicas(observed), is_fetched(observed)
    try:
        objects = desired_objects(observed, settings)
    except UnsupportedError as error:
        problem = Problem(Reason.UNSUPPORTED_SPEC, str(error))
        return Wanted(replicas=number, is_fetched=fetched, problem=problem)
    except SpecError as error:
        problem = Problem(Reason.INVALID_SPEC, str(error))
        return Wanted(replicas=number, is_fetched=fetched, problem=problem)
    workers = next(manifest for manifest in objects if kind_of(manifest) is DEPLOYMENT)
    containers = workers["spec"]["template"]["spec"]["containers"]
    image = next(
        str(container.get("image", "")) for container in containers if container["name"] == ENGINE_CONTAINER
    )
    return Wanted(objects, number, image, fetched)
