"""The fields of a pod that the operator keeps: enough to explain why it does not serve."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import (
    DELETION_COST_ANNOTATION,
    ENGINE_CONTAINER,
    FETCHING_LABEL,
    MODEL_FETCH_CONTAINER,
    REVISION_LABEL,
)
from warmfleet_operator.objects.times import seconds_of

MAX_MESSAGE_LENGTH: Final = 1024
LATE_END_SECONDS: Final = 60.0
"""How long after its grace period a pod may still end. At the end of that period the kubelet kills what is
left; on a node that is lost no kubelet does, and the pod stays for as long as the object of its node."""
_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container's state."""

    waiting: str = ""
    """Reason of the waiting state; empty if the container does not wait."""
    message: str = ""
    """Message of the waiting state, or the termination message of the last run."""
    running: bool = False
    running_since_seconds: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    """Of the last run that ended; None if none has."""
    last_run_seconds: float = 0.0
    """Length of that run; 0 if it could not be started."""
    last_run_began_seconds: float = 0.0
    """When that run began, since the epoch."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of that run because memory had run out."""
    memory_limit: str = ""
    """As the pod has it, such as `4Gi`; empty if it has none."""

    @property
    def cannot_be_pulled(self) -> bool:
        return self.waiting in _IMAGE_REASONS

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and not self.waiting and not self.running

    @property
    def ended_badly(self) -> bool:
        """Whether the last run that ended failed; a new one may be running."""
        return self.exit_code not in {None, 0}


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod."""

    name: str
    uid: str
    revision: str
    job: str
    """Name of its Job; empty for a worker."""
    created_seconds: float
    """Since the epoch."""
    phase: str
    ready: bool
    terminating: bool
    unschedulable: str
    """The scheduler's message while no node fits; empty if it has a node or was not scheduled yet."""
    unschedulable_since_seconds: float
    scheduling_gates: tuple[str, ...]
    """Gates that keep the pod from being scheduled; empty once they are removed."""
    engine: ContainerView
    fetch: ContainerView
    fetching: bool = False
    """Whether it carries the label of pods that fetch their model."""
    fetches: bool = False
    """Whether it has a container that fetches before the engine starts."""
    assigned: bool = True
    """Whether it has a node."""
    scheduled_seconds: float = 0.0
    """When it got its node, since the epoch; 0 before."""
    containers_wait_since_seconds: float = 0.0
    """From when on those containers could run that do not: since its initialization, or since one ended."""
    deletion_cost: int = 0
    """Of pods that are as ready as it, a ReplicaSet deletes the one with the lowest first."""
    unready_since_seconds: float = 0.0
    """Since when it has not been ready, since the epoch; 0 while it is, and before its node has seen it."""
    gone_by_seconds: float = math.inf
    """When a deleted pod is to be gone, its grace period included, since the epoch."""

    @property
    def holds_model(self) -> bool:
        """Whether it has fetched its model and still carries that label."""
        return self.fetching and self.fetch.succeeded and not self.terminating

    @property
    def lacks_label(self) -> bool:
        """Whether it has yet to fetch its model and does not carry that label."""
        return self.fetches and not self.fetching and not self.fetch.succeeded and self.live

    @property
    def live(self) -> bool:
        """Whether it has not ended and has not been deleted."""
        return not self.terminating and self.phase not in {"Failed", "Succeeded"}

    @property
    def last_run_was_ready(self) -> bool:
        """Whether the last run of its engine that ended was ever ready; of a pod that is not ready.

        Such a run made the pod unready at its end, or before. A run that was never ready found it unready: by
        the end of an earlier run, or from the time on at which its node first saw the pod.
        """
        return self.unready_since_seconds > self.engine.last_run_began_seconds

    def stopping(self, now_seconds: float) -> bool:
        """Whether it was deleted and is about to end: not one whose end is overdue, as on a lost node."""
        return self.terminating and now_seconds < self.gone_by_seconds + LATE_END_SECONDS


def replicas_of(pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """The pods that a ReplicaSet counts: those that live, without the pod of a Job."""
    return tuple(pod for pod in pods if pod.live and not pod.job)


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """The kept fields of a pod of the API server."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    readiness = conditions.get("Ready") or {}
    ready = readiness.get("status") == "True"
    deleted = metadata.get("deletionTimestamp")
    containers = _by_name(status.get("containerStatuses"))
    first = _by_name(status.get("initContainerStatuses"))
    fetch = first.get(MODEL_FETCH_CONTAINER) or containers.get(MODEL_FETCH_CONTAINER)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=labels.get(REVISION_LABEL, ""),
        job=labels.get("batch.kubernetes.io/job-name", ""),
        created_seconds=seconds_of(metadata.get("creationTimestamp")),
        phase=status.get("phase") or "",
        ready=ready,
        terminating=bool(deleted),
        unschedulable=str(scheduled.get("message") or "no node fits")[:MAX_MESSAGE_LENGTH] if refused else "",
        unschedulable_since_seconds=seconds_of(scheduled.get("lastTransitionTime")) if refused else 0.0,
        scheduling_gates=tuple(gate["name"] for gate in spec.get("schedulingGates") or ()),
        engine=_container(
            containers.get(ENGINE_CONTAINER), _by_name(spec.get("containers")).get(ENGINE_CONTAINER)
        ),
        fetch=_container(fetch),
        fetching=FETCHING_LABEL in labels,
        fetches=MODEL_FETCH_CONTAINER in _by_name(spec.get("initContainers")),
        scheduled_seconds=seconds_of(scheduled.get("lastTransitionTime"))
        if scheduled.get("status") == "True"
        else 0.0,
        containers_wait_since_seconds=max(
            seconds_of((conditions.get(kind) or {}).get("lastTransitionTime"))
            for kind in ("PodScheduled", "Initialized", "ContainersReady")
        ),
        assigned=bool(spec.get("nodeName")),
        deletion_cost=_deletion_cost(metadata.get("annotations") or {}),
        unready_since_seconds=0.0 if ready else seconds_of(readiness.get("lastTransitionTime")),
        gone_by_seconds=seconds_of(deleted) if deleted else math.inf,
    )


def _deletion_cost(annotations: Mapping[str, str]) -> int:
    """0 for what is no number: the API server accepts any text, and the ReplicaSet takes it as 0."""
    try:
        return int(annotations.get(DELETION_COST_ANNOTATION, "0"))
    except ValueError:
        return 0


def _by_name(containers: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    return {container["name"]: container for container in containers or ()}


def _container(status: Mapping[str, Any] | None, wanted: Mapping[str, Any] | None = None) -> ContainerView:
    if status is None:
        return ContainerView()
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    # A run that could not be started has no time, or the epoch, at which it began, and one at which it ended.
    began = max(0.0, seconds_of((ended or {}).get("startedAt")))
    finished = seconds_of((ended or {}).get("finishedAt"))
    # The termination message names the cause; the waiting message is only "back-off 10s restarting".
    left = str((ended or {}).get("message") or "").strip()
    message = left or str(waiting.get("message") or "")
    run = state.get("running") or {}
    return ContainerView(
        waiting=str(waiting.get("reason") or ""),
        message=message[-MAX_MESSAGE_LENGTH:],  # the cause is at the end of a log
        running="running" in state,
        running_since_seconds=seconds_of(run.get("startedAt")),
        restarts=int(status.get("restartCount") or 0),
        exit_code=int(ended["exitCode"]) if ended else None,
        last_run_seconds=max(0.0, finished - began) if began else 0.0,
        last_run_began_seconds=began,
        # Not the exit code: a server whose engine was killed ends by itself, with another one than 137.
        out_of_memory=(ended or {}).get("reason") == "OOMKilled",
        memory_limit=str((((wanted or {}).get("resources") or {}).get("limits") or {}).get("memory") or ""),
    )
