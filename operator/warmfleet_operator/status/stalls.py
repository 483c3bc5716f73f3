"""Finds why a ModelDeployment stalls: nothing will change until a user acts. Pure.

A new reason: a function below, called by `_problems`, and its place in `STALLED_REASONS`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from warmfleet_contracts.resources.conditions import STALLED_REASONS, Reason
from warmfleet_operator.objects.jobs import job_ended, retry_job_at_seconds
from warmfleet_operator.objects.pods import LATE_END_SECONDS, ContainerView, PodView, replicas_of
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.replica_state import QUOTA_WORDS, replica_failure

CRASHES: Final = 2
"""An engine that restarts this often without becoming ready is in a crash loop."""
LONG_RUN_SECONDS: Final = 600.0
"""A run of this length that was ready ends a crash loop; the kubelet resets its back-off after the same."""
RETRY_SECONDS: Final = 30.0
"""A failed fetch that runs again counts as in progress only after this long: it may fail at once again."""

CONFIGURATION_SECONDS: Final = 30.0
"""A container that cannot be made counts as in progress this long: also a Secret that exists is missing to a
kubelet whose cache does not have it yet, and it tries again within 15 seconds."""
_PROGRESS_SECONDS: Final = 600
"""Kubernetes' own default of a Deployment's `progressDeadlineSeconds`."""


def stall(observation: Observation) -> Problem | None:
    """Why progress needs a change from outside; the first reason in the order of the table."""
    found = {problem.reason: problem for problem in reversed(list(_problems(observation)))}
    return next((found[reason] for reason in STALLED_REASONS if reason in found), None)


def seconds_to_next_change(observation: Observation) -> float | None:
    """Seconds until the conditions change with time alone; None if they do not."""
    waits = [
        observation.no_room_seconds - (observation.now_seconds - pod.unschedulable_since_seconds)
        for pod in observation.pods
        if pod.live and pod.unschedulable
    ]
    waits += [
        RETRY_SECONDS - (observation.now_seconds - pod.fetch.running_since_seconds)
        for pod in observation.pods
        if pod.live and pod.fetch.running and pod.fetch.ended_badly
    ]
    waits += [
        _start_limit_seconds(observation) - (observation.now_seconds - _starts_since_seconds(pod))
        for pod in observation.pods
        if pod.live and _starts(pod)
    ]
    waits += [
        pod.gone_by_seconds + LATE_END_SECONDS - observation.now_seconds
        for pod in observation.pods
        if pod.terminating
    ]
    waits += [
        CONFIGURATION_SECONDS - (observation.now_seconds - pod.containers_wait_since_seconds)
        for pod in observation.pods
        if pod.live and _missing_configuration(pod)
    ]
    if observation.job is not None and job_ended(observation.job) == "Failed":
        waits.append(retry_job_at_seconds(observation.job) - observation.now_seconds)
    return min((max(wait, 0.0) + 0.5 for wait in waits if wait > -1), default=None)


def _problems(observation: Observation) -> Iterator[Problem]:
    if observation.problem is not None:
        yield observation.problem
    if observation.asleep:
        yield from _fetch_problems(observation, [])  # its last pods are stopping
        return
    live = [pod for pod in observation.pods if pod.live]
    yield from _fetch_problems(observation, live)
    newest = [pod for pod in live if not pod.ready and not pod.job]
    yield from _image_problems(newest)
    settled_at = observation.now_seconds - CONFIGURATION_SECONDS
    settled = [pod for pod in newest if pod.containers_wait_since_seconds <= settled_at]
    yield from _first(settled, Reason.CONFIGURATION_MISSING, _missing_configuration)
    yield from _first(newest, Reason.CRASH_LOOPING, _crash)
    yield from _no_room(observation, [pod for pod in live if pod.unschedulable])
    yield from _slow_starts(observation, [pod for pod in newest if _starts(pod)])
    yield from _deadline(observation)


def _first(pods: Iterable[PodView], reason: Reason, complaint: Callable[[PodView], str]) -> Iterator[Problem]:
    for pod in pods:
        if text := complaint(pod):
            yield Problem(reason, f"{pod.name}: {text}")
            return


def _fetch_problems(observation: Observation, live: list[PodView]) -> Iterator[Problem]:
    if observation.job is not None and job_ended(observation.job) == "Failed":
        messages = [pod.fetch.message for pod in observation.pods if pod.job and pod.fetch.message]
        text = messages[-1] if messages else "the Job has failed; the logs of its pods hold the reason"
        yield Problem(Reason.FETCH_FAILED, text)
        return
    for pod in live:
        if _fetch_fails(pod.fetch, observation.now_seconds):
            yield Problem(Reason.FETCH_FAILED, _failed_fetch(pod.fetch))
            return


def _failed_fetch(fetch: ContainerView) -> str:
    if fetch.out_of_memory:
        end = f"OOMKilled, exit code {fetch.exit_code}"
        return f"the fetch ran out of memory ({end}), its limit is too low: {fetch.message}"
    return fetch.message or f"exit code {fetch.exit_code}"


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
    if pod.last_run_was_ready and engine.last_run_seconds >= LONG_RUN_SECONDS:
        return ""
    end = f"with exit code {engine.exit_code}: "
    if engine.out_of_memory:
        limit = f", limit {engine.memory_limit}" if engine.memory_limit else ""
        end = (
            f"because it ran out of memory (OOMKilled, exit code {engine.exit_code}{limit}): "
            "raise spec.resources.limits.memory or lower spec.kvCache.size. "
        )
    return f"the engine ended {engine.restarts} times, the last time {end}{engine.message}"


def _no_room(observation: Observation, waiting: list[PodView]) -> Iterator[Problem]:
    within_limit = [
        pod
        for pod in waiting
        if observation.now_seconds - pod.unschedulable_since_seconds < observation.no_room_seconds
    ]
    if not waiting or len(within_limit) == len(waiting):
        return
    pod = next(pod for pod in waiting if pod not in within_limit)
    rollout = (observation.deployment.get("spec") or {}).get("rollout") or {}
    surging = any(other.revision != pod.revision for other in replicas_of(observation.pods))
    if not pod.job and _scales_and_serves(observation) and (not surging or _shrinks(observation)):
        return  # condition ScalingActive reports it; for the sake of a rollout such replicas are given back
    if surging and not pod.job and int(rollout.get("maxSurge", 1)) > 0:
        yield Problem(
            Reason.NO_ROOM_FOR_SURGE,
            f"{pod.name} starts before an old replica stops, and no node has room for both: "
            f"{pod.unschedulable}. With spec.rollout.maxSurge: 0 and maxUnavailable: 1 an old replica goes "
            "first",
        )
    else:
        yield Problem(Reason.UNSCHEDULABLE, f"{pod.name}: {pod.unschedulable}")


def _slow_starts(observation: Observation, starting: Iterable[PodView]) -> Iterator[Problem]:
    """A Deployment's own deadline ends with its rollout, and replicas start later, too."""
    latest = observation.now_seconds - _start_limit_seconds(observation)
    late = [pod for pod in starting if _starts_since_seconds(pod) <= latest]
    text = f"not ready within {_start_limit(observation)}"
    yield from _first(late, Reason.STARTUP_TIMEOUT, lambda _: text)


def _starts(pod: PodView) -> bool:
    """Whether it has a node and is to get ready there."""
    return not pod.job and not pod.ready and pod.scheduled_seconds > 0


def _starts_since_seconds(pod: PodView) -> float:
    """Since it got its node, or since it was ready last."""
    return max(pod.scheduled_seconds, pod.unready_since_seconds)


def _start_limit_seconds(observation: Observation) -> int:
    """Of the Deployment that its pods belong to; a spec that is not carried out changes nothing about it."""
    spec = (observation.workers or {}).get("spec") or {}
    return int(spec.get("progressDeadlineSeconds", _PROGRESS_SECONDS))


def _start_limit(observation: Observation) -> str:
    rollout = (observation.deployment.get("spec") or {}).get("rollout") or {}
    seconds = rollout.get("startupTimeoutSeconds")
    limit = f"spec.rollout.startupTimeoutSeconds ({seconds} s)" if seconds else "the time for it"
    return f"{limit} and ten minutes for its image and its model"


def _deadline(observation: Observation) -> Iterator[Problem]:
    if _scales_and_serves(observation) and _only_lacks_places(observation):
        return  # as in `_no_room`
    for condition in ((observation.workers or {}).get("status") or {}).get("conditions") or ():
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            text = f"no replica got ready within {_start_limit(observation)}"
            yield Problem(Reason.STARTUP_TIMEOUT, text)
    refused = None if observation.workers is None else replica_failure(observation.workers)
    if refused is not None and not _within_budget(observation, refused):
        yield Problem(Reason.OBJECT_REFUSED, refused)


def _within_budget(observation: Observation, refused: str) -> bool:
    """Whether a fleet that scales has reached its namespace's quota: a budget, not an error."""
    return QUOTA_WORDS in refused and _scales_and_serves(observation)


def _only_lacks_places(observation: Observation) -> bool:
    unready = [pod for pod in replicas_of(observation.pods) if not pod.ready]
    return bool(unready) and all(pod.unschedulable for pod in unready)


def _shrinks(observation: Observation) -> bool:
    workers = observation.workers
    return workers is not None and observation.desired_replicas < int(workers["spec"].get("replicas", 1))


def _scales_and_serves(observation: Observation) -> bool:
    scales = bool((observation.deployment.get("spec") or {}).get("autoscaling"))
    return scales and any(pod.ready for pod in observation.pods)
