"""The Lease object by which replicas agree on a leader. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from warmfleet_operator.objects.kinds import LEASE


@dataclass(frozen=True, slots=True)
class LastChange:
    """When this process saw the Lease change last."""

    resource_version: str
    at_seconds: float
    """On this process's own clock."""


def may_acquire(lease: Mapping[str, Any], identity: str, seen: LastChange, now: float) -> bool:
    """Whether `identity` may hold the Lease: it does already, it has no holder, or it has expired."""
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    return holder in {"", identity} or now - seen.at_seconds > float(spec.get("leaseDurationSeconds") or 0)


def held_by(
    identity: str,
    lease: Mapping[str, Any] | None,
    name: tuple[str, str],
    duration_seconds: float,
    now: datetime,
) -> dict[str, Any]:
    """The Lease with `identity` as its holder and its resourceVersion unchanged: replacing it is conditional.

    Args:
        identity: the holder.
        lease: the Lease as it was read; None to create it.
        name: namespace and name.
        duration_seconds: after this long without a change another replica may acquire it.
        now: for `acquireTime` and `renewTime`, which are for people; no replica compares them with its clock.
    """
    old = (lease or {}).get("spec") or {}
    renewed = old.get("holderIdentity") == identity
    time = now.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.name,
        "metadata": dict(lease["metadata"]) if lease else {"namespace": name[0], "name": name[1]},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": max(1, round(duration_seconds)),
            "acquireTime": old.get("acquireTime", time) if renewed else time,
            "renewTime": time,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if renewed or not old else 1),
        },
    }
