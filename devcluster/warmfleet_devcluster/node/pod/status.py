"""The status of a pod, given the states of its containers. Pure; after the kubelet's getPhase."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_devcluster.node.container.state import ContainerView, Running, Terminated, Waiting

FINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What the status depends on beside the containers."""

    restart_policy: str
    gates_open: bool
    """Whether every readiness gate of the pod is True."""
    generation: int
    host_ip: str
    pod_ip: str
    """Empty while the pod has no network."""
    start_time: str
    """When the node took the pod up, RFC 3339."""


def initialized(inits: Sequence[ContainerView]) -> bool:
    """Every init container has succeeded; a sidecar counts once it is started."""
    return all(view.started if view.restarts_always else view.succeeded for view in inits)


def phase(restart_policy: str, inits: Sequence[ContainerView], mains: Sequence[ContainerView]) -> str:
    """Pending, Running, Succeeded or Failed."""
    failed = any(isinstance(v.state, Terminated) and not v.succeeded for v in inits if not v.restarts_always)
    if failed and restart_policy == "Never":
        return "Failed"
    begun = any(isinstance(view.state, Running | Terminated) or view.last for view in mains)
    fresh = any(isinstance(view.state, Waiting) and view.last is None for view in mains)
    if fresh or (not begun and not initialized(inits)):
        return "Pending"
    if restart_policy == "Always" or any(isinstance(view.state, Running) for view in mains):
        return "Running"
    # Every container has ended at least once; the last end of one that waits for its next run is in `last`.
    ends = [view.state if isinstance(view.state, Terminated) else view.last for view in mains]
    if all(end is not None and end.exit_code == 0 for end in ends):
        return "Succeeded"
    return "Failed" if restart_policy == "Never" else "Running"


def pod_status(
    facts: PodFacts,
    inits: Sequence[ContainerView],
    mains: Sequence[ContainerView],
    *,
    previous: dict[str, Any],
    now: str,
) -> dict[str, Any]:
    """The status to write, with the node's own conditions only: the write merges them with those of others.

    `previous` is what was written last: a condition keeps its transition time unless it changes, and a final
    phase is final.
    """
    decided = phase(facts.restart_policy, inits, mains)
    if previous.get("phase") in FINAL_PHASES:
        decided = previous["phase"]
    conditions = _conditions(facts, inits, mains, decided, previous=previous.get("conditions", []), now=now)
    return {
        "observedGeneration": facts.generation,
        "phase": decided,
        "conditions": conditions,
        "hostIP": facts.host_ip,
        "hostIPs": [{"ip": facts.host_ip}],
        **({"podIP": facts.pod_ip, "podIPs": [{"ip": facts.pod_ip}]} if facts.pod_ip else {}),
        "startTime": previous.get("startTime", facts.start_time),
        **({"initContainerStatuses": [view.as_status() for view in inits]} if inits else {}),
        "containerStatuses": [view.as_status() for view in mains],
    }


def _conditions(
    facts: PodFacts,
    inits: Sequence[ContainerView],
    mains: Sequence[ContainerView],
    decided: str,
    *,
    previous: list[dict[str, Any]],
    now: str,
) -> list[dict[str, Any]]:
    known = {condition["type"]: condition for condition in previous}
    done = decided == "Succeeded"
    unready = [view.name for view in mains if not view.ready]
    sidecars_unready = [view.name for view in inits if view.restarts_always and not view.ready]
    uninitialized = [v.name for v in inits if not (v.started if v.restarts_always else v.succeeded)]

    containers_ready = not unready and not sidecars_unready and not uninitialized
    not_ready_message = f"containers with unready status: [{' '.join(sidecars_unready + unready)}]"
    computed = [
        _condition("PodReadyToStartContainers", bool(facts.pod_ip) and decided not in FINAL_PHASES),
        _condition(
            "Initialized",
            done or not uninitialized,
            reason="PodCompleted" if done else "ContainersNotInitialized" if uninitialized else "",
            message=f"containers with incomplete status: [{' '.join(uninitialized)}]"
            if uninitialized and not done
            else "",
        ),
    ]
    for name, holds in (
        ("ContainersReady", containers_ready),
        ("Ready", containers_ready and facts.gates_open),
    ):
        ready = holds and decided == "Running"
        if ready:
            reason, message = "", ""
        elif decided in FINAL_PHASES:
            reason, message = ("PodCompleted" if done else "PodFailed"), ""
        elif not containers_ready:
            reason, message = "ContainersNotReady", not_ready_message
        else:
            reason, message = "ReadinessGatesNotReady", "a readiness gate of the pod is not True"
        computed.append(_condition(name, ready, reason=reason, message=message))
    computed.append(_condition("PodScheduled", holds=True))
    return [_dated(condition, known.get(condition["type"]), facts.generation, now) for condition in computed]


def _condition(name: str, holds: bool, *, reason: str = "", message: str = "") -> dict[str, Any]:  # noqa: FBT001
    return {
        "type": name,
        "status": "True" if holds else "False",
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
    }


def _dated(
    condition: dict[str, Any], before: dict[str, Any] | None, generation: int, now: str
) -> dict[str, Any]:
    same = before is not None and before["status"] == condition["status"]
    since = before.get("lastTransitionTime", now) if before is not None and same else now
    return {**condition, "observedGeneration": generation, "lastProbeTime": None, "lastTransitionTime": since}
