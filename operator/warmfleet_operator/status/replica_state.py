"""The replicas of a fleet as the scaling policy sees them, from its Deployment and its pods. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_operator.objects.pods import PodView, replicas_of
from warmfleet_operator.objects.replica_notes import last_set_replicas
from warmfleet_operator.objects.rollouts import template_revision
from warmfleet_operator.scaling.decision import ReplicaState

QUOTA_WORDS: Final = "exceeded quota"
"""In the message with which the API server refuses a pod that a ResourceQuota has no room for."""


@dataclass(frozen=True, slots=True)
class DeploymentScale:
    """The part of a Deployment that changes with its version alone."""

    replicas: int
    revision: str
    rolling: bool
    """Its controller has not observed the newest template, or replaces pods."""
    refused: bool
    """The API server refuses pods of it."""
    spec_version: tuple[str, int]
    """Its uid and generation: another one after each write of its spec, by any client."""
    set_by_another: bool
    """The number is not the last one that an operator set, by its note. False without a note."""


def deployment_scale(workers: Mapping[str, Any]) -> DeploymentScale:
    """The scale of a Deployment of the API server."""
    status = workers.get("status") or {}
    replicas = int((workers.get("spec") or {}).get("replicas", 1))
    observed = int(status.get("observedGeneration") or 0) >= int(workers["metadata"].get("generation") or 0)
    replaced = int(status.get("updatedReplicas") or 0) < int(status.get("replicas") or 0)
    return DeploymentScale(
        replicas=replicas,
        revision=template_revision(workers),
        rolling=replaced or not observed,
        refused=replica_failure(workers) is not None,
        spec_version=(str(workers["metadata"]["uid"]), int(workers["metadata"].get("generation") or 0)),
        set_by_another=last_set_replicas(workers) not in {None, replicas},
    )


def replica_failure(workers: Mapping[str, Any]) -> str | None:
    """Why pods of a Deployment are refused; None if none is."""
    for condition in (workers.get("status") or {}).get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return str(condition.get("message") or "pods are refused")
    return None


def replica_state(
    scale: DeploymentScale, pods: Iterable[PodView], now_seconds: float, no_room_seconds: float
) -> tuple[ReplicaState, tuple[str, ...]]:
    """The state, and the uids of the pods that are ready.

    A pod that found no node, or waits behind a scheduling gate, counts as pending until `no_room_seconds`
    have passed: until then an autoscaler of nodes may still make room.
    """
    pods = tuple(pods)
    live = replicas_of(pods)
    ready = tuple(pod.uid for pod in live if pod.ready)
    without_place = sum(_has_no_place(pod, now_seconds, no_room_seconds) for pod in live)
    refused = max(0, scale.replicas - len(live)) if scale.refused else 0
    state = ReplicaState(
        spec_replicas=scale.replicas,
        ready=len(ready),
        pending=max(0, scale.replicas - len(ready)),
        unschedulable=without_place + refused,
        in_rollout=scale.rolling or any(pod.revision != scale.revision for pod in live),
        stopping=sum(pod.stopping(now_seconds) for pod in pods if not pod.job),
        set_by_another=scale.set_by_another,
    )
    return state, ready


def lacks_only_places(
    scale: DeploymentScale, pods: Iterable[PodView], now_seconds: float, no_room_seconds: float
) -> bool:
    """Whether a rollout waits for nothing but places: a replica of the newest template serves."""
    live = replicas_of(pods)
    unready = [pod for pod in live if not pod.ready]
    return (
        bool(unready)
        and all(_has_no_place(pod, now_seconds, no_room_seconds) for pod in unready)
        and any(pod.ready and pod.revision == scale.revision for pod in live)
    )


def _has_no_place(pod: PodView, now_seconds: float, no_room_seconds: float) -> bool:
    if pod.unschedulable:
        return now_seconds - pod.unschedulable_since_seconds >= no_room_seconds
    return bool(pod.scheduling_gates) and now_seconds - pod.created_seconds >= no_room_seconds
