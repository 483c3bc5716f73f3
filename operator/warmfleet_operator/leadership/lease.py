"""Who leads, by a Lease: at most one replica writes, whatever stops, dies or is cut off.

The holder renews; a leader writes only until `renew_seconds` after the *start* of its last renewal that
succeeded, and another takes over only when it has not seen the Lease change for `duration_seconds`, which is
longer. Nobody compares clocks of two machines: times in the Lease are for people to read.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import ClusterError, ConflictError, GoneError
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.objects.kinds import LEASE
from warmfleet_operator.settings import LeaseSettings

_JITTER_RATIO: Final = 0.2

log = structlog.get_logger("warmfleet.operator")


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as it was last seen to change."""

    resource_version: str
    at_seconds: float
    """On our own clock."""


def may_take(lease: Mapping[str, Any], identity: str, seen: Sighting, now: float) -> bool:
    """Whether `identity` may hold the lease: it does, nobody does, or the holder is silent for too long."""
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    return holder in {"", identity} or now - seen.at_seconds > float(spec.get("leaseDurationSeconds") or 0)


def held(
    lease: Mapping[str, Any] | None,
    name: tuple[str, str],
    identity: str,
    duration_seconds: float,
    now: datetime,
) -> dict[str, Any]:
    """The Lease in the hands of `identity`; keeps the resourceVersion, so that replacing it compares."""
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


class Campaign:
    """Tries to lead for as long as it runs, and gives the lead back when it ends."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        fence: Fence,
        settings: LeaseSettings,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None],
    ) -> None:
        self._cluster = cluster
        self._fence = fence
        self._settings = settings
        self._namespace = namespace
        self._identity = identity
        self._on_change = on_change
        self._lease: dict[str, Any] | None = None
        self._seen = Sighting("", fence.clock())
        self._led = False

    async def run(self) -> None:
        """Renew or try to take over until cancelled; then release."""
        try:
            while True:
                await self._attempt()
                self._say()
                pause = self._settings.retry_seconds
                await asyncio.sleep(pause * random.uniform(1 - _JITTER_RATIO, 1 + _JITTER_RATIO))  # noqa: S311
        finally:
            await self._release()

    async def _attempt(self) -> None:
        started = self._fence.clock()
        try:
            await self._renew(started)
        except ConflictError:
            self._lease = None  # another was first; the next attempt reads who
        except ClusterError as error:
            self._lease = None
            log.warning("lease not renewed", leading=self._fence.leading, reason=str(error))

    async def _renew(self, started: float) -> None:
        if self._lease is None or not self._fence.leading:
            try:
                self._lease = await self._cluster.read(LEASE, self._namespace, self._settings.name)
            except GoneError:
                self._lease = None
        if self._lease is not None:
            version = self._lease["metadata"]["resourceVersion"]
            if version != self._seen.resource_version:
                self._seen = Sighting(version, self._fence.clock())
            if not may_take(self._lease, self._identity, self._seen, self._fence.clock()):
                if self._led:
                    self._fence.drop()
                return
        name = (self._namespace, self._settings.name)
        wanted = held(self._lease, name, self._identity, self._settings.duration_seconds, datetime.now(UTC))
        write = self._cluster.create_lease if self._lease is None else self._cluster.replace_lease
        self._lease = await write(wanted)
        self._fence.extend(started + self._settings.renew_seconds)

    def _say(self) -> None:
        leading = self._fence.leading
        if leading != self._led:
            self._led = leading
            log.info("leading" if leading else "standing by", identity=self._identity)
            self._on_change(leading)

    async def _release(self) -> None:
        held_until_now, lease = self._fence.leading, self._lease
        self._fence.drop()
        if not held_until_now or lease is None:
            return
        lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace_lease(lease)
        except ClusterError as error:
            log.warning("lease not released: a successor waits until it expires", reason=str(error))
