"""Elects the leader among the replicas: at most one writes, also when one is stopped, killed or partitioned.

The leader writes only until `renew_seconds` after the *start* of its last successful renewal. Another replica
acquires the Lease only when it has not seen it change for `duration_seconds`, which is longer. Clocks of two
machines are never compared.
"""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from warmfleet_operator.cluster import Cluster
from warmfleet_operator.errors import ClusterError, ConflictError, GoneError
from warmfleet_operator.leadership.fence import Fence
from warmfleet_operator.leadership.lease import LastChange, held_by, may_acquire
from warmfleet_operator.objects.kinds import LEASE
from warmfleet_operator.settings import LeaseSettings

_JITTER_RATIO: Final = 0.2

log = structlog.get_logger("warmfleet.operator")


class LeaderElector:
    """Renews or tries to acquire the Lease until it is cancelled, and releases it then.

    It extends `fence` with every renewal; `on_change` receives whether this replica leads now.
    """

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
        """As it was read or written last; None if it has to be read again."""
        self._last_change = LastChange("", fence.clock())
        self._led = False

    async def run(self) -> None:
        """Renew or try to acquire until cancelled; then release."""
        try:
            while True:
                await self._attempt()
                self._report_change()
                pause = self._settings.retry_seconds
                await asyncio.sleep(pause * random.uniform(1 - _JITTER_RATIO, 1 + _JITTER_RATIO))  # noqa: S311
        finally:
            await self._release()

    async def _attempt(self) -> None:
        started = self._fence.clock()
        try:
            await self._renew(started)
        except ConflictError:
            self._lease = None  # another replica was first; the next attempt reads its Lease
        except ClusterError as error:
            self._lease = None
            log.warning("lease not renewed", leading=self._fence.leading, reason=str(error))
        except Exception:
            # A Lease that another program damaged must not end the elections of this replica for good.
            self._lease = None
            log.exception("lease not renewed", leading=self._fence.leading)

    async def _renew(self, started: float) -> None:
        if self._lease is None or not self._fence.leading:
            try:
                self._lease = await self._cluster.read(LEASE, self._namespace, self._settings.name)
            except GoneError:
                self._lease = None
        if self._lease is not None:
            version = self._lease["metadata"]["resourceVersion"]
            if version != self._last_change.resource_version:
                self._last_change = LastChange(version, self._fence.clock())
            if not may_acquire(self._lease, self._identity, self._last_change, self._fence.clock()):
                if self._led:
                    self._fence.drop()
                return
        name = (self._namespace, self._settings.name)
        wanted = held_by(
            self._identity, self._lease, name, self._settings.duration_seconds, datetime.now(UTC)
        )
        write = self._cluster.create_lease if self._lease is None else self._cluster.replace_lease
        self._lease = await write(wanted)
        self._fence.extend(started + self._settings.renew_seconds)

    def _report_change(self) -> None:
        leading = self._fence.leading
        if leading != self._led:
            self._led = leading
            log.info("leading" if leading else "standing by", identity=self._identity)
            self._on_change(leading)

    async def _release(self) -> None:
        was_leading, lease = self._fence.leading, self._lease
        self._fence.drop()
        if not was_leading or lease is None:
            return
        lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._cluster.replace_lease(lease)
        except ClusterError as error:
            log.warning("lease not released: it is free only when it expires", reason=str(error))
