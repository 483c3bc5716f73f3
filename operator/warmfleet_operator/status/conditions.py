"""What is said of a ModelDeployment, by condition. Pure; `docs/reference/conditions.md` is its table."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.resources.conditions import STALLED_REASONS, ConditionStatus, ConditionType, Reason
from warmfleet_operator.objects.pods import ContainerView, PodView
from warmfleet_operator.objects.rollouts import rollout_complete
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.reconcile.plan import job_ended, retry_job_at_seconds
from warmfleet_operator.status.facts import Facts, Problem

CRASHES: Final = 2
"""Restarts of an engine, without it ever getting ready since, that are called a loop."""
LONG_RUN_SECONDS: Final = 600.0
"""After a run of this length an end is no loop, and the kubelet begins its back-off anew, too."""
RETRY_SECONDS: Final = 30.0
"""A fetch that has failed and runs again is under way only after this: what failed at once fails so again."""
MAX_MESSAGE_LENGTH: Final = 1024

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN


@dataclass(frozen=True, slots=True)
class Condition:
    """One of them, without its time."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


def conditions_of(facts: Facts) -> tuple[Condition, ...]:
    """All conditions, in the order of their types."""
    idle = _idle(facts)
    problem = None if idle is not None else stall(facts)
    cached = _model_cached(facts, problem)
    progress = None if idle or problem else _progress(facts, cached)
    named = _name_accepted(facts)
    routed = _router_ready(facts, idle)
    return (
        _ready(idle, problem, progress, named, routed),
        _available(facts, idle),
        _reconciling(facts, idle, problem, progress),
        _stalled(problem),
        cached,
        named,
        routed,
        _scaling_active(facts),
    )


def written(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now_seconds: float
) -> list[dict[str, Any]]:
    """Conditions as they stand in a status; their time moves only with their status."""
    known = {condition.get("type"): condition for condition in before}
    result = []
    for condition in conditions:
        old = known.get(condition.type.value) or {}
        same = old.get("status") == condition.status and old.get("lastTransitionTime")
        result.append(
            {
                "type": condition.type.value,
                "status": condition.status.value,
                "observedGeneration": generation,
                "lastTransitionTime": old["lastTransitionTime"] if same else time_of(now_seconds),
                "reason": condition.reason.value,
                "message": condition.message[:MAX_MESSAGE_LENGTH],
            }
        )
    return result


def stall(facts: Facts) -> Problem | None:
    """Why nothing will change until somebody acts; the first reason in the order of their table."""
    found = {problem.reason: problem for problem in reversed(list(_problems(facts)))}
    return next((found[reason] for reason in STALLED_REASONS if reason in found), None)


def soonest_change_seconds(facts: Facts) -> float | None:
    """After how many seconds time alone changes what is said; None = it does not."""
    waits = [
        facts.no_room_seconds - (facts.now_seconds - pod.unschedulable_since_seconds)
        for pod in facts.pods
        if pod.live and pod.unschedulable
    ]
    waits += [
        RETRY_SECONDS - (facts.now_seconds - pod.fetch.running_since_seconds)
        for pod in facts.pods
        if pod.live and pod.fetch.running and pod.fetch.ended_badly
    ]
    if facts.job is not None and job_ended(facts.job) == "Failed":
        waits.append(retry_job_at_seconds(facts.job) - facts.now_seconds)
    return min((max(wait, 0.0) + 0.5 for wait in waits if wait > -1), default=None)


def _problems(facts: Facts) -> Iterator[Problem]:
    if facts.problem is not None:
        yield facts.problem
    live = [pod for pod in facts.pods if pod.live]
    yield from _fetch_problems(facts, live)
    newest = [pod for pod in live if not pod.ready and not pod.job]
    yield from _image_problems(newest)
    yield from _first(newest, Reason.CONFIGURATION_MISSING, _missing_configuration)
    yield from _first(newest, Reason.CRASH_LOOPING, _crash)
    yield from _no_room(facts, [pod for pod in live if pod.unschedulable])
    yield from _deadline(facts)


def _first(pods: Iterable[PodView], reason: Reason, complaint: Callable[[PodView], str]) -> Iterator[Problem]:
    for pod in pods:
        if text := complaint(pod):
            yield Problem(reason, f"{pod.name}: {text}")
            return


def _fetch_problems(facts: Facts, live: list[PodView]) -> Iterator[Problem]:
    if facts.job is not None and job_ended(facts.job) == "Failed":
        told = [pod.fetch.message for pod in facts.pods if pod.job and pod.fetch.message]
        text = told[-1] if told else "the Job has failed; its pods say why"
        yield Problem(Reason.FETCH_FAILED, text)
        return
    for pod in live:
        if _fetch_fails(pod.fetch, facts.now_seconds):
            yield Problem(Reason.FETCH_FAILED, pod.fetch.message or f"exit code {pod.fetch.exit_code}")
            return


def _fetch_fails(fetch: ContainerView, now_seconds: float) -> bool:
    retrying = fetch.running and now_seconds - fetch.running_since_seconds >= RETRY_SECONDS
    return fetch.ended_badly and not retrying


def _image_problems(pods: Iterable[PodView]) -> Iterator[Problem]:
    for pod in pods:
        for container in (pod.fetch, pod.engine):
            if container.cannot_be_pulled:
                yield Problem(
                    Reason.IMAGE_PULL_FAILED, f"{pod.name}: {container.message or container.waiting}"
                )
                return


def _missing_configuration(pod: PodView) -> str:
    for container in (pod.fetch, pod.engine):
        if container.waiting in {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}:
            return container.message or container.waiting
    return ""


def _crash(pod: PodView) -> str:
    engine = pod.engine
    if engine.restarts < CRASHES and not (engine.restarts and engine.waiting == "CrashLoopBackOff"):
        return ""
    if engine.last_run_seconds >= LONG_RUN_SECONDS:
        return ""
    return (
        f"the engine ended {engine.restarts} times, last with exit code {engine.exit_code}: {engine.message}"
    )


def _no_room(facts: Facts, waiting: list[PodView]) -> Iterator[Problem]:
    patient = [
        pod for pod in waiting if facts.now_seconds - pod.unschedulable_since_seconds < facts.no_room_seconds
    ]
    if not waiting or len(patient) == len(waiting):
        return
    pod = next(pod for pod in waiting if pod not in patient)
    rollout = (facts.deployment.get("spec") or {}).get("rollout") or {}
    surging = any(other.revision != pod.revision for other in facts.pods if other.live and not other.job)
    if surging and not pod.job and int(rollout.get("maxSurge", 1)) > 0:
        yield Problem(
            Reason.NO_ROOM_FOR_SURGE,
            f"{pod.name} starts before an old replica stops, and no node has room for both: "
            f"{pod.unschedulable}. With spec.rollout.maxSurge: 0 and maxUnavailable: 1 an old replica goes "
            "first",
        )
    else:
        yield Problem(Reason.UNSCHEDULABLE, f"{pod.name}: {pod.unschedulable}")


def _deadline(facts: Facts) -> Iterator[Problem]:
    for condition in ((facts.workers or {}).get("status") or {}).get("conditions") or ():
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            seconds = ((facts.deployment.get("spec") or {}).get("rollout") or {}).get("startupTimeoutSeconds")
            limit = f"spec.rollout.startupTimeoutSeconds ({seconds} s)" if seconds else "the time for it"
            text = f"no replica got ready within {limit} and ten minutes for its image and its model"
            yield Problem(Reason.STARTUP_TIMEOUT, text)
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            yield Problem(Reason.OBJECT_REFUSED, str(condition.get("message") or "pods are refused"))


def _idle(facts: Facts) -> Problem | None:
    """Why no replica is wanted."""
    spec = facts.deployment.get("spec") or {}
    if facts.problem is not None:
        return None
    if spec.get("suspend"):
        return Problem(Reason.SUSPENDED, "spec.suspend is true: every replica is stopped")
    if facts.desired_replicas == 0:
        return Problem(Reason.NO_REPLICAS, "spec.replicas is 0")
    return None


def _counts(facts: Facts) -> tuple[int, int, int]:
    """Replicas: ready, up to date, all."""
    status = (facts.workers or {}).get("status") or {}
    ready, updated = int(status.get("readyReplicas") or 0), int(status.get("updatedReplicas") or 0)
    return ready, updated, int(status.get("replicas") or 0)


def _ready(
    idle: Problem | None,
    problem: Problem | None,
    progress: Problem | None,
    named: Condition,
    routed: Condition,
) -> Condition:
    for trouble in (idle, problem, progress):
        if trouble is not None:
            return Condition(ConditionType.READY, FALSE, trouble.reason, trouble.message)
    for part in (named, routed):
        if part.status is not TRUE:
            return Condition(ConditionType.READY, FALSE, part.reason, part.message)
    return Condition(ConditionType.READY, TRUE, Reason.READY, "every replica serves, and routers send to it")


def _available(facts: Facts, idle: Problem | None) -> Condition:
    if idle is not None:
        return Condition(ConditionType.AVAILABLE, FALSE, idle.reason, idle.message)
    rollout = (facts.deployment.get("spec") or {}).get("rollout") or {}
    least = max(1, facts.desired_replicas - int(rollout.get("maxUnavailable", 0)))
    ready = _counts(facts)[0]
    message = f"{ready} of {facts.desired_replicas} replicas are ready; {least} must be"
    if ready >= least:
        return Condition(ConditionType.AVAILABLE, TRUE, Reason.AVAILABLE, message)
    return Condition(ConditionType.AVAILABLE, FALSE, Reason.UNAVAILABLE, message)


def _progress(facts: Facts, cached: Condition) -> Problem | None:
    """What is under way."""
    if facts.waits_for:
        return Problem(
            Reason.WAITING_FOR_UPGRADE_SLOT,
            f"this release of the operator changes the workers; {facts.waits_for} is being upgraded first",
        )
    if cached.status is FALSE:
        return Problem(Reason.FETCHING, cached.message)
    ready, updated, replicas = _counts(facts)
    if facts.workers is not None and rollout_complete(facts.workers) and ready == facts.desired_replicas:
        return None
    wanted = facts.desired_replicas
    old = f"; {replicas - updated} of another revision are left" if replicas > updated else ""
    return Problem(Reason.PROGRESSING, f"{ready} of {wanted} replicas are ready, {updated} up to date{old}")


def _reconciling(
    facts: Facts, idle: Problem | None, problem: Problem | None, progress: Problem | None
) -> Condition:
    if problem is not None:
        text = "see condition Stalled"
        return Condition(ConditionType.RECONCILING, FALSE, Reason.STALLED, text)
    if progress is not None:
        return Condition(ConditionType.RECONCILING, TRUE, progress.reason, progress.message)
    if idle is not None:
        left = len([pod for pod in facts.pods if pod.live or pod.terminating])
        if left:
            text = f"{left} pods are stopping"
            return Condition(ConditionType.RECONCILING, TRUE, Reason.PROGRESSING, text)
        return Condition(ConditionType.RECONCILING, FALSE, idle.reason, idle.message)
    return Condition(ConditionType.RECONCILING, FALSE, Reason.ROLLOUT_COMPLETE, "nothing is under way")


def _stalled(problem: Problem | None) -> Condition:
    if problem is None:
        return Condition(ConditionType.STALLED, FALSE, Reason.NOT_STALLED, "nothing waits for anybody")
    return Condition(ConditionType.STALLED, TRUE, problem.reason, problem.message)


def _model_cached(facts: Facts, problem: Problem | None) -> Condition:
    if not facts.is_fetched:
        status, reason, text = TRUE, Reason.PROVIDED, "the volume holds the model; nothing is fetched"
    elif problem is not None and problem.reason is Reason.FETCH_FAILED:
        status, reason, text = FALSE, problem.reason, problem.message
    elif facts.job_wanted:
        status, reason, text = _cached_by_job(facts.job)
    else:
        status, reason, text = _cached_by_pods([pod for pod in facts.pods if pod.live and not pod.job])
    return Condition(ConditionType.MODEL_CACHED, status, reason, text)


def _cached_by_job(job: Mapping[str, Any] | None) -> tuple[ConditionStatus, Reason, str]:
    if job is None:
        return UNKNOWN, Reason.NOT_OBSERVED, "the Job that fetches the model is not there yet"
    if job_ended(job) == "Complete":
        return TRUE, Reason.CACHED, "the claim holds the model"
    return FALSE, Reason.FETCHING, "a Job fetches the model onto the claim"


def _cached_by_pods(workers: list[PodView]) -> tuple[ConditionStatus, Reason, str]:
    if any(pod.fetch.succeeded or pod.ready for pod in workers):
        return TRUE, Reason.CACHED, "every pod that serves holds the model"
    if any(pod.fetch.running for pod in workers):
        return FALSE, Reason.FETCHING, "pods fetch the model"
    return UNKNOWN, Reason.NOT_OBSERVED, "no pod has tried to fetch the model yet"


def _name_accepted(facts: Facts) -> Condition:
    kind = ConditionType.NAME_ACCEPTED
    if facts.problem is not None and facts.problem.reason is Reason.INVALID_SPEC:
        return Condition(kind, UNKNOWN, Reason.INVALID_SPEC, facts.problem.message)
    if facts.rival is not None:
        owner = facts.rival.qualified_name
        own = f"{facts.deployment['metadata']['namespace']}/{facts.deployment['metadata']['name']}"
        return Condition(
            kind,
            FALSE,
            Reason.NAME_TAKEN,
            f"{facts.taken_name} belongs to {owner}, which claimed it first; requests for {own} come here",
        )
    return Condition(kind, TRUE, Reason.NAME_ACCEPTED, "no other ModelDeployment claimed its names first")


def _router_ready(facts: Facts, idle: Problem | None) -> Condition:
    kind, fleet = ConditionType.ROUTER_READY, facts.fleet
    if idle is not None:
        return Condition(kind, FALSE, idle.reason, idle.message)
    if not fleet.asked or (fleet.answering == 0 and (fleet.routers or fleet.problem)):
        text = fleet.problem or "routers were not asked yet"
        return Condition(kind, UNKNOWN, Reason.ROUTER_UNREACHABLE, text)
    if fleet.routers == 0:
        return Condition(kind, FALSE, Reason.NO_ROUTER, "no router pod is ready")
    uids = {pod.uid for pod in facts.pods if pod.live}
    # The Service sends a request to any of them.
    without = fleet.answering - len(fleet.ready_in(uids))
    if without:
        text = f"{without} of {fleet.answering} routers know no ready worker of it"
        return Condition(kind, FALSE, Reason.ROUTER_HAS_NO_WORKERS, text)
    return Condition(kind, TRUE, Reason.ROUTER_SERVING, "routers send requests to its workers")


def _scaling_active(facts: Facts) -> Condition:
    scaling = (facts.deployment.get("spec") or {}).get("autoscaling")
    text = f"the number of replicas is fixed at {facts.desired_replicas}"
    if scaling:
        text += ": spec.autoscaling bounds it, and this release does not move it yet"
    return Condition(ConditionType.SCALING_ACTIVE, FALSE, Reason.FIXED_REPLICAS, text)
