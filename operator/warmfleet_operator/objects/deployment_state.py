"""What the status of a ModelDeployment reports, as far as metrics show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warmfleet_contracts.resources.conditions import Reason


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """One ModelDeployment, by the status that was written last."""

    conditions: tuple[tuple[str, str], ...] = ()
    """Type and status of each condition."""
    wanted_replicas: int = 0
    ready_replicas: int = 0
    start_milliseconds: tuple[tuple[str, int], ...] = ()
    """How long each phase of the last start took."""


def set_replicas(spec: Mapping[str, Any]) -> int:
    """Workers that a spec asks for: none while suspended, otherwise within the bounds of autoscaling."""
    if spec.get("suspend"):
        return 0
    replicas, scaling = int(spec.get("replicas", 1)), spec.get("autoscaling")
    if not scaling:
        return replicas
    return max(int(scaling.get("minReplicas", 1)), min(replicas, int(scaling["maxReplicas"])))


def counted_replicas(status: Mapping[str, Any]) -> int | None:
    """The number that a status counts ready replicas against; None before the first status."""
    counted = str(status.get("readySummary") or "").partition("/")[2]
    return int(counted) if counted.isascii() and counted.isdigit() else None


def kept_replicas(status: Mapping[str, Any]) -> int | None:
    """The number that a fleet which scales had; None before its first status, and while suspended."""
    number = counted_replicas(status)
    sleeps = any(condition.get("reason") == Reason.ASLEEP for condition in status.get("conditions") or ())
    return number if number or sleeps else None


def _set_replicas(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    counted = counted_replicas(status) if spec.get("autoscaling") else None
    return set_replicas(spec) if counted is None else counted


def deployment_state(deployment: Mapping[str, Any]) -> DeploymentState:
    """The state of a ModelDeployment of the API server; empty before its first status."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    return DeploymentState(
        conditions=tuple(
            (condition["type"], condition["status"]) for condition in status.get("conditions") or ()
        ),
        wanted_replicas=_set_replicas(spec, status) if status.get("conditions") else 0,
        ready_replicas=int(status.get("readyReplicas") or 0),
        start_milliseconds=tuple((status.get("lastStart") or {}).get("phaseMilliseconds", {}).items()),
    )
