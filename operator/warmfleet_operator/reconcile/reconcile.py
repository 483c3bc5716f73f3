"""Reconciles one ModelDeployment: observe, compute desired objects, plan, write, report status.

Level-based: a reconciliation reads the whole state and depends on no earlier one.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.ownership import owners
from warmfleet_operator.desired.commits import HubRevision, Unresolved, known_commit, moving_revision
from warmfleet_operator.errors import KeysMissingError, RefusedError
from warmfleet_operator.hub.commits import HubCommits
from warmfleet_operator.keys import KeySecrets
from warmfleet_operator.objects.deployment_state import kept_replicas
from warmfleet_operator.objects.kinds import DEPLOYMENT, JOB, kind_of
from warmfleet_operator.objects.pods import replicas_of
from warmfleet_operator.objects.releases import Owner, owner_of
from warmfleet_operator.objects.rollouts import (
    Cause,
    UpgradeState,
    annotated,
    blocking,
    cause_of,
    spec_hash,
    template_image,
    template_revision,
)
from warmfleet_operator.objects.served_names import name_of_another, request_names
from warmfleet_operator.reconcile.plan import Manifest, Plan, controlled_by, plan_changes
from warmfleet_operator.reconcile.wanted import Wanted, wanted_by
from warmfleet_operator.reconcile.writer import Writer
from warmfleet_operator.replicas.number import ReplicaNumber, replica_number, with_number
from warmfleet_operator.replicas.shrinks import PAYBACK_SECONDS, NextNumber, Shrinks
from warmfleet_operator.replicas.victims import Marking
from warmfleet_operator.routers.hit_rates import HitRates
from warmfleet_operator.routers.poller import RouterPoller
from warmfleet_operator.settings import OperatorSettings
from warmfleet_operator.status.advisor import ScalingAdvisor
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.replica_state import deployment_scale, lacks_only_places, replica_state
from warmfleet_operator.status.stalls import seconds_to_next_change
from warmfleet_operator.status.status import status_of
from warmfleet_operator.watch.entry import Key
from warmfleet_operator.watch.store import Store

WAIT_SECONDS: Final = 5.0
"""Between two reconciliations while another object has to be deleted or another upgrade has to finish."""

log = structlog.get_logger("warmfleet.operator")


class Reconciler:
    """Brings one ModelDeployment at a time to its desired state. Every write goes through `writer`.

    Call `reconcile` for a key whenever something that concerns it may have changed; calls for different keys
    may run at once.
    """

    def __init__(
        self,
        *,
        store: Store,
        writer: Writer,
        key_secrets: KeySecrets,
        commits: HubCommits[Key],
        routers: RouterPoller,
        hits: HitRates,
        advisor: ScalingAdvisor,
        shrinks: Shrinks,
        settings: OperatorSettings,
    ) -> None:
        self._store = store
        self._writer = writer
        self._key_secrets = key_secrets
        self._commits = commits
        self._routers = routers
        self._hits = hits
        self._advisor = advisor
        self._shrinks = shrinks
        self._settings = settings
        self._upgrade_slot = asyncio.Lock()
        self.waiting_for_routers: set[Key] = set()
        """Deployments with a ready worker that some router does not count as ready: poll routers sooner."""

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile `key`.

        Returns:
            Seconds until it must be reconciled again; None = not before something changes.

        Raises:
            ClusterError: not everything could be written; try again soon.
        """
        deployment = self._store.deployment(key)
        if deployment is None or "deletionTimestamp" in deployment["metadata"]:
            self._writer.forget(key)
            self._commits.forget(key)
            self._shrinks.forget(key)
            self._advisor.forget(key)
            self.waiting_for_routers.discard(key)
            return None  # Kubernetes deletes its children by their owner references
        owner = self._other_owner(key, deployment)
        adopts = owner is not None and owner.release in self._settings.own_releases
        await self._writer.write_conflict(key, deployment, None if adopts else owner)
        if owner is not None and not adopts:
            self._commits.forget(key)
            self._advisor.forget(key)
            self.waiting_for_routers.discard(key)
            return None  # an event of its objects or its status will come when that changes
        asked = moving_revision(deployment)
        commit = self._commit(key, deployment, asked)
        wanted = wanted_by(deployment, self._settings, asked, commit)
        owner_by_name = owners(self._store.claims())
        names = tuple(request_names(deployment, owner_by_name))
        name_owner, contested_name = name_of_another(deployment, owner_by_name)
        if wanted.policy is None:
            self._advisor.forget(key)
        else:
            acts = wanted.bounds.mode == "Active"
            self._advisor.follow(key, wanted.policy, names, acts=acts)
        observation = Observation(
            deployment,
            time.time(),
            no_room_seconds=self._settings.no_room_seconds,
            desired_replicas=replica_number(wanted.bounds, self._store.child(DEPLOYMENT, key), None).replicas,
            is_fetched=wanted.is_fetched,
            commit=wanted.commit,
            resolved_from=str(asked or ""),
            job_wanted=bool(wanted.fetch_job),
            problem=wanted.problem,
            carried_out=False,
            name_owner=name_owner,
            contested_name=contested_name,
            request_names=names,
        )
        again = commit.again_seconds if isinstance(commit, Unresolved) else None
        if wanted.problem is None:
            observation, again = await self._carry_out(key, observation, wanted, adopts=adopts)
        if adopts and self._store.children(key) and self._other_owner(key, deployment) is not None:
            # Its Deployment could not be written yet, so the status is still that release's.
            if observation.problem is not None:
                raise RefusedError(f"not adopted yet: {observation.problem.message}")
            return again
        observation = self._observed(key, observation, wanted.fetch_job)
        if unknown_to_routers(observation):
            self.waiting_for_routers.add(key)
        else:
            self.waiting_for_routers.discard(key)
        await self._writer.write_status(key, deployment, status_of(observation))
        if observation.problem is not None and observation.problem.reason in {
            Reason.OBJECT_REFUSED,
            Reason.OBJECT_CONFLICT,
            Reason.CONFIGURATION_MISSING,
        }:
            raise RefusedError(observation.problem.message)
        soon = seconds_to_next_change(observation)
        return min((seconds for seconds in (again, soon) if seconds is not None), default=None)

    def _commit(self, key: Key, deployment: Mapping[str, Any], asked: HubRevision | None) -> str | Unresolved:
        """What the deployment's branch or tag was resolved to: once, until its source is another."""
        known = "" if asked is None else known_commit(asked, deployment, self._store.child(DEPLOYMENT, key))
        if asked is None or known:
            self._commits.forget(key)
            return known
        return self._commits.commit(key, asked)

    def _other_owner(self, key: Key, deployment: Mapping[str, Any]) -> Owner | None:
        """The release that owns it, if it is another one than this operator's."""
        uid = deployment["metadata"]["uid"]
        children = (child for child in self._store.children(key) if controlled_by(child, uid))
        owner = owner_of(deployment, children)
        return None if owner is None or owner.release == self._settings.release else owner

    async def _carry_out(
        self, key: Key, observation: Observation, wanted: Wanted, *, adopts: bool
    ) -> tuple[Observation, float | None]:
        deployment = observation.deployment
        try:
            await self._key_secrets.ensure_namespace(key.namespace)
        except (KeysMissingError, RefusedError) as error:
            return replace(observation, problem=Problem(Reason.CONFIGURATION_MISSING, str(error))), None
        number, following = await self._numbers(key, deployment, wanted)
        uid = deployment["metadata"]["uid"]
        sized = sized_objects(wanted.objects, number, following.replicas)
        wanted = replace(wanted, objects=sized)
        plan, blocked_by = self._planned(key, deployment, wanted, following.markings, adopts=adopts)
        if plan is None:
            async with self._upgrade_slot:  # of two upgrades that could start, only one may
                plan, blocked_by = self._planned(
                    key, deployment, wanted, following.markings, adopts=adopts, slot_held=True
                )
                assert plan is not None
                problem = await self._writer.carry_out(key, plan, uid)
        else:
            problem = await self._writer.carry_out(key, plan, uid)
        payback = PAYBACK_SECONDS if wanted.policy is None else wanted.policy.payback_seconds
        self._shrinks.written(key, following, number.replicas, payback)
        waits = [WAIT_SECONDS] if plan.pending or blocked_by is not None else []
        if following.again_seconds is not None:
            waits.append(following.again_seconds)
        return (
            replace(
                observation,
                problem=problem,
                carried_out=True,
                upgrade_blocked_by=str(blocked_by or ""),
                desired_replicas=number.replicas,
                external_scaler=number.external_scaler,
            ),
            min(waits, default=None),
        )

    async def _numbers(
        self, key: Key, deployment: Mapping[str, Any], wanted: Wanted
    ) -> tuple[ReplicaNumber, NextNumber]:
        """The number that the Deployment is to have, and the one that is written now."""
        workers = self._store.child(DEPLOYMENT, key)
        manifest = next(manifest for manifest in wanted.objects if kind_of(manifest) is DEPLOYMENT)
        if workers is None:
            known = kept_replicas(deployment.get("status") or {})
            number = replica_number(wanted.bounds, None, None, known=known)
            return number, NextNumber(number.replicas)
        pods, scale = self._store.pods(key), deployment_scale(workers)
        decision = self._advisor.decision(key, scale)
        state, _ = replica_state(scale, pods, time.time(), self._settings.no_room_seconds)
        number = replica_number(
            wanted.bounds,
            workers,
            decision,
            rolls=state.in_rollout or template_revision(manifest) != template_revision(workers),
            without_place=min(state.unschedulable, state.pending),
        )
        following = await self._shrinks.next_number(
            key,
            pods,
            current=state.spec_replicas,
            wanted=number.replicas,
            first=decision.victim if decision is not None else None,
        )
        return number, following

    def _planned(
        self,
        key: Key,
        deployment: Mapping[str, Any],
        wanted: Wanted,
        markings: Sequence[Marking],
        *,
        adopts: bool,
        slot_held: bool = False,
    ) -> tuple[Plan | None, Key | None]:
        """The plan, and the deployment whose upgrade blocks it; no plan if it needs the upgrade slot."""
        existing = self._store.children(key)
        workers = next((child for child in existing if kind_of(child) is DEPLOYMENT), None)
        # Releases before this one hashed the spec with all defaults; their annotation stays valid.
        specs = {wanted.spec_hash, spec_hash(deployment["spec"])}
        objects: list[Manifest] = []
        blocked_by: Key | None = None
        for manifest in wanted.objects:
            if kind_of(manifest) is not DEPLOYMENT:
                objects.append(manifest)
                continue
            cause = cause_of(manifest, workers, specs)
            objects.append(annotated(manifest, cause, wanted.spec_hash))
            if workers is None or cause is Cause.SPEC:
                continue
            if template_revision(manifest) == template_revision(workers):
                continue  # its upgrade has started already
            blocked_by = blocking(key, self._upgrades(), self._settings.own_releases)
            if blocked_by is None and not slot_held:
                return None, None
        uid = deployment["metadata"]["uid"]
        frozen = blocked_by is not None
        pods = self._store.pods(key)
        plan = plan_changes(objects, existing, uid, pods=pods, now_seconds=time.time(), frozen=frozen)
        plan = replace(plan, markings=tuple(markings))
        return adoption(plan) if adopts else plan, blocked_by

    def _upgrades(self) -> Iterator[tuple[Key, UpgradeState]]:
        """The state of every upgrade, but of those that wait for places alone, where the release serves."""
        now, no_room = time.time(), self._settings.no_room_seconds
        for other, state in self._store.upgrades():
            workers = self._store.child(DEPLOYMENT, other) if state.upgrading else None
            if workers is None or not lacks_only_places(
                deployment_scale(workers), self._store.pods(other), now, no_room
            ):
                yield other, state

    def _observed(self, key: Key, observation: Observation, fetch_job: str) -> Observation:
        """`observation` with the state of the cluster and of the routers after the writes."""
        children = {(kind_of(child), child["metadata"]["name"]): child for child in self._store.children(key)}
        workers = children.get((DEPLOYMENT, key.name))
        return replace(
            observation,
            workers=workers,
            image="" if workers is None else template_image(workers),
            job=children.get((JOB, fetch_job)),
            pods=tuple(sorted(self._store.pods(key), key=lambda pod: (pod.created_seconds, pod.name))),
            fleet=self._routers.view,
            advice=self._advisor.advice(key),
            hit_percent=self._hits.percent(observation.request_names),
            url=f"{self._settings.router_url}/v1",
            release=str(self._settings.release),
        )


def sized_objects(objects: Iterable[Manifest], number: ReplicaNumber, replicas: int) -> tuple[Manifest, ...]:
    """The desired objects; the Deployment has `replicas` on its way to `number`."""
    return tuple(
        with_number(manifest, number, replicas) if kind_of(manifest) is DEPLOYMENT else manifest
        for manifest in objects
    )


def adoption(plan: Plan) -> Plan:
    """The part of `plan` that takes a ModelDeployment over from another release: its Deployment decides.

    Until that is written, the other operator undoes every other write; what is left follows afterwards.
    """
    return Plan(applies=tuple(manifest for manifest in plan.applies if kind_of(manifest) is DEPLOYMENT))


def unknown_to_routers(observation: Observation) -> bool:
    """Whether a worker is ready and some router that answers does not count it as ready."""
    fleet = observation.fleet
    ready = [pod.uid for pod in replicas_of(observation.pods) if pod.ready]
    return any(len(fleet.ready_in([uid])) < max(fleet.answering, 1) for uid in ready)
