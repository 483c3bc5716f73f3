"""What the operator keeps of a pod: enough to say why it does not serve."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import ENGINE_CONTAINER, MODEL_FETCH_CONTAINER, REVISION_LABEL
from warmfleet_operator.objects.times import seconds_of

MAX_MESSAGE_LENGTH: Final = 1024
_IMAGE_REASONS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container's state."""

    waiting: str = ""
    """Reason for which it waits; empty = it does not."""
    message: str = ""
    """Why it waits, or what its last end left behind."""
    running: bool = False
    running_since_seconds: float = 0.0
    restarts: int = 0
    exit_code: int | None = None
    """Of its end, or of the end before a restart; None = it never ended."""
    last_run_seconds: float = 0.0
    """How long it ran before that end."""

    @property
    def cannot_be_pulled(self) -> bool:
        return self.waiting in _IMAGE_REASONS

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and not self.waiting and not self.running

    @property
    def ended_badly(self) -> bool:
        """Its last end was a failure, whatever it does now."""
        return self.exit_code not in {None, 0}


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod."""

    name: str
    uid: str
    revision: str
    job: str
    """Name of the Job that it belongs to; empty for a worker."""
    created_seconds: float
    ip: str
    phase: str
    ready: bool
    terminating: bool
    unschedulable: str
    """The scheduler's words for why there is no room; empty = it has a node, or nobody looked yet."""
    unschedulable_since_seconds: float
    engine: ContainerView
    fetch: ContainerView
    node: str

    @property
    def live(self) -> bool:
        """It counts as a replica."""
        return not self.terminating and self.phase not in {"Failed", "Succeeded"}


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """A pod of the API server, cut down."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    refused = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    containers = _by_name(status.get("containerStatuses"))
    first = _by_name(status.get("initContainerStatuses"))
    fetch = first.get(MODEL_FETCH_CONTAINER) or containers.get(MODEL_FETCH_CONTAINER)
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        revision=labels.get(REVISION_LABEL, ""),
        job=labels.get("batch.kubernetes.io/job-name", ""),
        created_seconds=seconds_of(metadata.get("creationTimestamp")),
        ip=status.get("podIP") or "",
        phase=status.get("phase") or "",
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        terminating="deletionTimestamp" in metadata,
        unschedulable=str(scheduled.get("message") or "no node fits")[:MAX_MESSAGE_LENGTH] if refused else "",
        unschedulable_since_seconds=seconds_of(scheduled.get("lastTransitionTime")) if refused else 0.0,
        engine=_container(containers.get(ENGINE_CONTAINER)),
        fetch=_container(fetch),
        node=(pod.get("spec") or {}).get("nodeName") or "",
    )


def _by_name(statuses: Iterable[Mapping[str, Any]] | None) -> dict[str, Mapping[str, Any]]:
    return {status["name"]: status for status in statuses or ()}


def _container(status: Mapping[str, Any] | None) -> ContainerView:
    if status is None:
        return ContainerView()
    state = status.get("state") or {}
    waiting = state.get("waiting") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    # What a container leaves in its termination message says more than "back-off 10s restarting".
    left = str((ended or {}).get("message") or "").strip()
    message = left or str(waiting.get("message") or "")
    run = state.get("running") or {}
    return ContainerView(
        waiting=str(waiting.get("reason") or ""),
        message=message[-MAX_MESSAGE_LENGTH:],  # of a log, the end says why
        running="running" in state,
        running_since_seconds=seconds_of(run.get("startedAt")),
        restarts=int(status.get("restartCount") or 0),
        exit_code=int(ended["exitCode"]) if ended else None,
        last_run_seconds=max(0.0, seconds_of(ended.get("finishedAt")) - seconds_of(ended.get("startedAt")))
        if ended
        else 0.0,
    )
