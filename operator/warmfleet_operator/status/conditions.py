"""Computes the conditions of a ModelDeployment. Pure; `docs/reference/conditions.md` lists the results.

`stalls` has the rules by which one stalls.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.resources.conditions import (
    RELEASE_CONFLICT,
    ConditionStatus,
    ConditionType,
    Reason,
)
from warmfleet_operator.objects.jobs import job_ended
from warmfleet_operator.objects.pods import PodView, replicas_of
from warmfleet_operator.objects.releases import Owner, conflict_message
from warmfleet_operator.objects.rollouts import rollout_complete
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.settings import Release
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.scaling_status import asleep_since, wanted_replicas
from warmfleet_operator.status.stalls import stall

MAX_MESSAGE_LENGTH: Final = 1024

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition without `lastTransitionTime` and `observedGeneration`."""

    type: str
    """A `ConditionType`, or `RELEASE_CONFLICT`."""
    status: ConditionStatus
    reason: Reason
    message: str


def conditions_of(observation: Observation) -> tuple[Condition, ...]:
    """All conditions, in the order of their types.

    conditions = conditions_of(Observation(deployment, time.time(), no_room_seconds=120.0))
    ready = conditions[0]
    assert (ready.type, ready.status) == (ConditionType.READY, ConditionStatus.FALSE)
    """
    idle = _idle(observation)
    problem = None if idle is not None and not observation.asleep else stall(observation)
    cached = _model_cached(observation, problem)
    named = _name_accepted(observation)
    progress = None
    if problem is None:
        progress = _progress(observation, cached) if idle is None else _stopping(observation, cached)
        served = idle is None or observation.asleep
        if progress is None and served and named.status is FALSE:
            problem = Problem(named.reason, named.message)
    routed = _router_ready(observation, idle)
    return (
        _ready(idle, problem, progress, routed),
        _available(observation, idle),
        _reconciling(idle, problem, progress),
        _stalled(problem),
        cached,
        named,
        routed,
        _scaling_active(observation),
    )


def status_conditions(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now_seconds: float
) -> list[dict[str, Any]]:
    """Conditions as a status holds them; `lastTransitionTime` changes only when `status` does."""
    known = {condition.get("type"): condition for condition in before}
    result = []
    for condition in conditions:
        old = known.get(condition.type) or {}
        same = old.get("status") == condition.status and old.get("lastTransitionTime")
        result.append(
            {
                "type": str(condition.type),
                "status": condition.status.value,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else time_of(now_seconds),
                "reason": condition.reason.value,
                "message": condition.message[:MAX_MESSAGE_LENGTH],
            }
        )
    return result


def release_condition(owner: Owner, release: Release) -> Condition:
    """What the operator of `release` reports about a ModelDeployment of another release."""
    return Condition(RELEASE_CONFLICT, TRUE, Reason.OBJECT_CONFLICT, conflict_message(owner, release))


def _idle(observation: Observation) -> Problem | None:
    """Why no replica is desired."""
    spec = observation.deployment.get("spec") or {}
    if observation.problem is not None:
        return None
    overdue = _overdue(observation)
    if spec.get("suspend"):
        return Problem(Reason.SUSPENDED, f"spec.suspend is true: every replica is stopped{overdue}")
    if observation.asleep:
        text = f"no replica since {asleep_since(observation)}: a request for one of its names starts one"
        return Problem(Reason.ASLEEP, f"{text}{overdue}")
    if observation.desired_replicas == 0:
        return Problem(Reason.NO_REPLICAS, f"spec.replicas is 0{overdue}")
    return None


def _overdue(observation: Observation) -> str:
    """Deleted pods whose nodes do not report their end: nothing that is asked for waits for them."""
    now = observation.now_seconds
    names = [pod.name for pod in observation.pods if pod.terminating and not pod.stopping(now)]
    return f"; no node has reported the end of {', '.join(names)}" if names else ""


def _counts(observation: Observation) -> tuple[int, int, int]:
    """Replicas of the Deployment: ready, updated, all."""
    status = (observation.workers or {}).get("status") or {}
    ready, updated = int(status.get("readyReplicas") or 0), int(status.get("updatedReplicas") or 0)
    return ready, updated, int(status.get("replicas") or 0)


def _ready(
    idle: Problem | None,
    problem: Problem | None,
    progress: Problem | None,
    routed: Condition,
) -> Condition:
    for obstacle in (problem, progress):
        if obstacle is not None:
            return Condition(ConditionType.READY, FALSE, obstacle.reason, obstacle.message)
    if idle is not None:
        # As asked for. With False, tools that wait for a deployment would wait until it is scaled up.
        return Condition(ConditionType.READY, TRUE, idle.reason, idle.message)
    if routed.status is not TRUE:
        # What is unknown of a part is unknown of the whole: requests may well be served.
        return Condition(ConditionType.READY, routed.status, routed.reason, routed.message)
    return Condition(ConditionType.READY, TRUE, Reason.READY, "every replica serves, and routers send to it")


def _available(observation: Observation, idle: Problem | None) -> Condition:
    if idle is not None:
        return Condition(ConditionType.AVAILABLE, FALSE, idle.reason, idle.message)
    rollout = (observation.deployment.get("spec") or {}).get("rollout") or {}
    least = max(1, observation.desired_replicas - int(rollout.get("maxUnavailable", 0)))
    ready = _counts(observation)[0]
    message = f"{ready} of {observation.desired_replicas} replicas are ready; {least} must be"
    if ready >= least:
        return Condition(ConditionType.AVAILABLE, TRUE, Reason.AVAILABLE, message)
    if _still_available(observation, ready):
        message = f"{ready} of {observation.desired_replicas} replicas are ready, as many as before"
        return Condition(ConditionType.AVAILABLE, TRUE, Reason.AVAILABLE, message)
    return Condition(ConditionType.AVAILABLE, FALSE, Reason.UNAVAILABLE, message)


def _still_available(observation: Observation, ready: int) -> bool:
    """Whether the deployment was available and no replica was lost since: its desired number has grown."""
    status = observation.deployment.get("status") or {}
    before = {item.get("type"): item.get("status") for item in status.get("conditions") or ()}
    return (
        before.get(ConditionType.AVAILABLE.value) == TRUE
        and ready >= max(1, int(status.get("readyReplicas") or 0))
        and ready < observation.desired_replicas
    )


def _progress(observation: Observation, cached: Condition) -> Problem | None:
    """What is in progress."""
    if observation.problem is not None:
        return observation.problem  # of those that end by themselves; `stall` takes all others
    if observation.upgrade_blocked_by:
        return Problem(
            Reason.WAITING_FOR_UPGRADE_SLOT,
            f"this release of the operator changes the workers; {observation.upgrade_blocked_by} is being "
            "upgraded first",
        )
    if cached.status is FALSE:
        return Problem(Reason.FETCHING, cached.message)
    ready, updated, replicas = _counts(observation)
    if (
        observation.workers is not None
        and rollout_complete(observation.workers)
        and ready == observation.desired_replicas
    ):
        return None
    wanted = observation.desired_replicas
    old = f"; {replicas - updated} of another revision are left" if replicas > updated else ""
    gated = _gated(replicas_of(observation.pods))
    text = f"{ready} of {wanted} replicas are ready, {updated} up to date{old}{gated}"
    return Problem(Reason.PROGRESSING, text)


def _stopping(observation: Observation, cached: Condition) -> Problem | None:
    """What is in progress while no replica is desired."""
    if observation.asleep and cached.status is FALSE:
        return Problem(Reason.FETCHING, cached.message)
    now = observation.now_seconds
    left = len([pod for pod in observation.pods if pod.live or pod.stopping(now)])
    return Problem(Reason.PROGRESSING, f"{left} pods are stopping") if left else None


def _gated(workers: Iterable[PodView]) -> str:
    """Pods that the scheduler leaves alone until their gates are removed, as Kueue does."""
    gated = [pod for pod in workers if pod.scheduling_gates]
    if not gated:
        return ""
    gates = ", ".join(sorted({gate for pod in gated for gate in pod.scheduling_gates}))
    return f"; {len(gated)} wait for their scheduling gates to be removed: {gates}"


def _reconciling(idle: Problem | None, problem: Problem | None, progress: Problem | None) -> Condition:
    if problem is not None:
        text = "see condition Stalled"
        return Condition(ConditionType.RECONCILING, FALSE, Reason.STALLED, text)
    if progress is not None:
        return Condition(ConditionType.RECONCILING, TRUE, progress.reason, progress.message)
    if idle is not None:
        return Condition(ConditionType.RECONCILING, FALSE, idle.reason, idle.message)
    return Condition(ConditionType.RECONCILING, FALSE, Reason.ROLLOUT_COMPLETE, "no rollout in progress")


def _stalled(problem: Problem | None) -> Condition:
    if problem is None:
        return Condition(ConditionType.STALLED, FALSE, Reason.NOT_STALLED, "no rollout is blocked")
    return Condition(ConditionType.STALLED, TRUE, problem.reason, problem.message)


def _model_cached(observation: Observation, problem: Problem | None) -> Condition:
    if not observation.is_fetched:
        status, reason, text = TRUE, Reason.PROVIDED, "the volume holds the model; nothing is fetched"
    elif problem is not None and problem.reason is Reason.FETCH_FAILED:
        status, reason, text = FALSE, problem.reason, problem.message
    elif observation.job_wanted:
        status, reason, text = _cached_by_job(observation.job)
    else:
        status, reason, text = _cached_by_pods(replicas_of(observation.pods))
    return Condition(ConditionType.MODEL_CACHED, status, reason, text)


def _cached_by_job(job: Mapping[str, Any] | None) -> tuple[ConditionStatus, Reason, str]:
    if job is None:
        return UNKNOWN, Reason.NOT_OBSERVED, "the Job that fetches the model does not exist yet"
    if job_ended(job) == "Complete":
        return TRUE, Reason.CACHED, "the claim holds the model"
    return FALSE, Reason.FETCHING, "a Job fetches the model onto the claim"


def _cached_by_pods(workers: Collection[PodView]) -> tuple[ConditionStatus, Reason, str]:
    if any(pod.fetch.succeeded or pod.ready for pod in workers):
        return TRUE, Reason.CACHED, "every pod that serves holds the model"
    if any(pod.fetch.running for pod in workers):
        return FALSE, Reason.FETCHING, "pods fetch the model"
    return UNKNOWN, Reason.NOT_OBSERVED, "no pod has started to fetch the model yet"


def _name_accepted(observation: Observation) -> Condition:
    kind = ConditionType.NAME_ACCEPTED
    if observation.problem is not None and observation.problem.reason is Reason.INVALID_SPEC:
        return Condition(kind, UNKNOWN, Reason.INVALID_SPEC, observation.problem.message)
    if observation.name_owner is not None:
        owner = observation.name_owner.qualified_name
        own = (
            f"{observation.deployment['metadata']['namespace']}/{observation.deployment['metadata']['name']}"
        )
        return Condition(
            kind,
            FALSE,
            Reason.NAME_TAKEN,
            f"{observation.contested_name} belongs to {owner}, which claimed it first; requests for {own} "
            "still reach this deployment",
        )
    return Condition(kind, TRUE, Reason.NAME_ACCEPTED, "no other ModelDeployment claimed its names first")


def _router_ready(observation: Observation, idle: Problem | None) -> Condition:
    kind, fleet = ConditionType.ROUTER_READY, observation.fleet
    if idle is not None:
        return Condition(kind, FALSE, idle.reason, idle.message)
    if not fleet.polled or (fleet.answering == 0 and (fleet.routers or fleet.problem)):
        text = fleet.problem or "the routers have not been polled yet"
        return Condition(kind, UNKNOWN, Reason.ROUTER_UNREACHABLE, text)
    if fleet.routers == 0:
        return Condition(kind, FALSE, Reason.NO_ROUTER, "no router pod is ready")
    uids = {pod.uid for pod in observation.pods if pod.live}
    # The Service balances requests over all routers.
    without = fleet.answering - len(fleet.ready_in(uids))
    if without:
        text = f"{without} of {fleet.answering} routers know no ready worker of it"
        return Condition(kind, FALSE, Reason.ROUTER_HAS_NO_WORKERS, text)
    return Condition(kind, TRUE, Reason.ROUTER_SERVING, "routers send requests to its workers")


def _scaling_active(observation: Observation) -> Condition:
    spec = observation.deployment.get("spec") or {}
    scaling, replicas = spec.get("autoscaling"), observation.desired_replicas
    status, reason = FALSE, Reason.FIXED_REPLICAS
    if not scaling:
        text = f"the number of replicas is fixed at {replicas}"
    elif spec.get("suspend"):
        reason, text = Reason.SUSPENDED, "spec.suspend is true: every replica is stopped"
    elif scaling.get("mode") == "Paused":
        reason, text = Reason.PAUSED, f"spec.autoscaling.mode is Paused: the number of replicas is {replicas}"
    else:
        status, reason, text = _decided(observation, scaling.get("mode", "Active"))
    return Condition(ConditionType.SCALING_ACTIVE, status, reason, text)


def _decided(observation: Observation, mode: str) -> tuple[ConditionStatus, Reason, str]:
    advice, replicas = observation.advice, observation.desired_replicas
    if advice is not None and advice.missing:
        happens = "wakes" if observation.asleep else "shrinks"
        text = f"{advice.missing}: nothing {happens} until it does"
        return UNKNOWN, Reason.SIGNALS_MISSING, text
    if advice is not None and advice.unschedulable:
        text = f"not all of {replicas} replicas get a place; no more are wanted until they do"
        return FALSE, Reason.CAPACITY_PENDING, text
    if observation.external_scaler:
        return FALSE, Reason.EXTERNAL_SCALER, observation.external_scaler
    text = f"{wanted_replicas(observation)} replicas are wanted, and {replicas} are set"
    if mode == "Advisory":
        return FALSE, Reason.ADVISORY, f"{text}; nothing is scaled"
    if not observation.carried_out:
        text = f"{text}; nothing is scaled until its objects are written: see condition Ready"
        return FALSE, Reason.ADVISORY, text
    return TRUE, Reason.FOLLOWS_DEMAND, text
