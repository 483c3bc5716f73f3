"""Conditions of a ModelDeployment: every type, status and reason that the operator writes.

`docs/reference/conditions.md` explains each and has the remedy; users script against these words.
`Reconciling` and `Stalled` are what kstatus reads, and with it Flux and `helm --wait`; Argo CD needs a
health check of its own.
"""

from enum import StrEnum
from typing import Final


class ConditionType(StrEnum):
    """Types of conditions. All of them are set from the first reconciliation on."""

    READY = "Ready"
    """All wanted replicas serve, at the current revision; also if none is wanted. The one to wait for."""
    AVAILABLE = "Available"
    """Enough replicas serve, of any revision. The one to alert on."""
    RECONCILING = "Reconciling"
    """Work is under way that will end by itself."""
    STALLED = "Stalled"
    """Nothing will change until a user acts."""
    MODEL_CACHED = "ModelCached"
    NAME_ACCEPTED = "NameAccepted"
    ROUTER_READY = "RouterReady"
    SCALING_ACTIVE = "ScalingActive"


RELEASE_CONFLICT: Final = "ReleaseConflict"
"""Type of a further condition, with reason ObjectConflict. Only the operator of a second release writes it,
and no other condition."""


class ConditionStatus(StrEnum):
    """As Kubernetes writes it."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition is as it is."""

    # All is well.
    READY = "WorkersReady"
    AVAILABLE = "MinimumReplicasAvailable"
    ROLLOUT_COMPLETE = "RolloutComplete"
    NOT_STALLED = "NotStalled"
    CACHED = "Cached"
    PROVIDED = "Provided"
    NAME_ACCEPTED = "NameAccepted"
    ROUTER_SERVING = "RouterServing"
    FOLLOWS_DEMAND = "FollowsDemand"

    # Asked for.
    SUSPENDED = "Suspended"
    NO_REPLICAS = "NoReplicas"
    ASLEEP = "Asleep"
    FIXED_REPLICAS = "FixedReplicas"
    PAUSED = "Paused"
    ADVISORY = "Advisory"

    # Under way.
    PROGRESSING = "Progressing"
    RESOLVING_REVISION = "ResolvingRevision"
    FETCHING = "Fetching"
    WAITING_FOR_UPGRADE_SLOT = "WaitingForUpgradeSlot"
    NOT_OBSERVED = "NotObserved"
    UNAVAILABLE = "MinimumReplicasUnavailable"

    # A user has to act.
    STALLED = "Stalled"
    NO_ROOM_FOR_SURGE = "NoRoomForSurge"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONFIGURATION_MISSING = "ConfigurationMissing"
    CRASH_LOOPING = "CrashLooping"
    STARTUP_TIMEOUT = "StartupTimeout"
    FETCH_FAILED = "FetchFailed"
    OBJECT_REFUSED = "ObjectRefused"
    OBJECT_CONFLICT = "ObjectConflict"
    INVALID_SPEC = "InvalidSpec"
    UNSUPPORTED_SPEC = "UnsupportedSpec"
    NAME_TAKEN = "NameTaken"
    REVISION_UNRESOLVED = "RevisionUnresolved"
    HUB_UNREACHABLE = "HubUnreachable"

    # Of autoscaling.
    EXTERNAL_SCALER = "ExternalScaler"
    CAPACITY_PENDING = "CapacityPending"
    SIGNALS_MISSING = "SignalsMissing"

    # Of the routers.
    NO_ROUTER = "NoRouter"
    ROUTER_UNREACHABLE = "RouterUnreachable"
    ROUTER_HAS_NO_WORKERS = "RouterHasNoWorkers"


STALLED_REASONS: Final = (
    Reason.INVALID_SPEC,
    Reason.UNSUPPORTED_SPEC,
    Reason.REVISION_UNRESOLVED,
    Reason.HUB_UNREACHABLE,
    Reason.OBJECT_REFUSED,
    Reason.OBJECT_CONFLICT,
    Reason.FETCH_FAILED,
    Reason.IMAGE_PULL_FAILED,
    Reason.CONFIGURATION_MISSING,
    Reason.CRASH_LOOPING,
    Reason.NO_ROOM_FOR_SURGE,
    Reason.UNSCHEDULABLE,
    Reason.STARTUP_TIMEOUT,
    Reason.NAME_TAKEN,
)
"""What stalls a deployment; the first that holds is reported."""

_T, _F, _U = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_NONE_WANTED: Final = (Reason.SUSPENDED, Reason.NO_REPLICAS, Reason.ASLEEP)
_ROUTER_TROUBLE: Final = (Reason.NO_ROUTER, Reason.ROUTER_HAS_NO_WORKERS)

_REASONS: Final[dict[ConditionType, dict[ConditionStatus, tuple[Reason, ...]]]] = {
    ConditionType.READY: {
        _T: (Reason.READY, *_NONE_WANTED),
        _F: (
            *STALLED_REASONS,
            Reason.RESOLVING_REVISION,
            Reason.FETCHING,
            Reason.WAITING_FOR_UPGRADE_SLOT,
            Reason.PROGRESSING,
            *_ROUTER_TROUBLE,
        ),
        _U: (Reason.ROUTER_UNREACHABLE,),
    },
    ConditionType.AVAILABLE: {
        _T: (Reason.AVAILABLE,),
        _F: (*_NONE_WANTED, Reason.UNAVAILABLE),
    },
    ConditionType.RECONCILING: {
        _T: (
            Reason.RESOLVING_REVISION,
            Reason.PROGRESSING,
            Reason.FETCHING,
            Reason.WAITING_FOR_UPGRADE_SLOT,
        ),
        _F: (*_NONE_WANTED, Reason.ROLLOUT_COMPLETE, Reason.STALLED),
    },
    ConditionType.STALLED: {_T: STALLED_REASONS, _F: (Reason.NOT_STALLED,)},
    ConditionType.MODEL_CACHED: {
        _T: (Reason.CACHED, Reason.PROVIDED),
        _F: (Reason.FETCHING, Reason.FETCH_FAILED),
        _U: (Reason.NOT_OBSERVED,),
    },
    ConditionType.NAME_ACCEPTED: {
        _T: (Reason.NAME_ACCEPTED,),
        _F: (Reason.NAME_TAKEN,),
        _U: (Reason.INVALID_SPEC,),
    },
    ConditionType.ROUTER_READY: {
        _T: (Reason.ROUTER_SERVING,),
        _F: (*_NONE_WANTED, *_ROUTER_TROUBLE),
        _U: (Reason.ROUTER_UNREACHABLE,),
    },
    ConditionType.SCALING_ACTIVE: {
        _T: (Reason.FOLLOWS_DEMAND,),
        _F: (
            Reason.FIXED_REPLICAS,
            Reason.SUSPENDED,
            Reason.PAUSED,
            Reason.ADVISORY,
            Reason.EXTERNAL_SCALER,
            Reason.CAPACITY_PENDING,
        ),
        _U: (Reason.SIGNALS_MISSING,),
    },
}

CONDITIONS: Final[tuple[tuple[ConditionType, ConditionStatus, Reason], ...]] = tuple(
    (kind, status, reason)
    for kind, by_status in _REASONS.items()
    for status, reasons in by_status.items()
    for reason in reasons
)
"""Everything that may stand in a status."""
