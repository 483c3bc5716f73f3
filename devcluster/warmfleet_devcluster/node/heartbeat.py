"""A node's heartbeat: registration, then Lease renewals and status updates."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from warmfleet_devcluster.clock import rfc3339_micro
from warmfleet_devcluster.node.node_object import LEASES, lease_object, node_object
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.media_types import STRATEGIC_MERGE_PATCH

Json = dict[str, Any]

_RETRY_SECONDS: Final = 1.0
_STATUS_EVERY: Final = 1.5
"""Lease renewals between two writes of the status: every second one, and the first after a pause."""
log = structlog.get_logger()


class NodeHeartbeat:
    """Registers one node and renews its Lease and status; `status` returns its status now."""

    def __init__(
        self,
        api: KubernetesClient,
        name: str,
        status: Callable[[], Json],
        *,
        labels: Mapping[str, str],
        pod_cidr: str,
        lease_seconds: float,
    ) -> None:
        self._api = api
        self._name = name
        self._status = status
        self._labels = labels
        self._pod_cidr = pod_cidr
        self._lease_seconds = lease_seconds
        self._uid = ""

    async def register(self) -> None:
        """Creates the Node or takes over an existing one; retries until the API server accepts it."""
        while True:
            try:
                node = await self._create()
            except ApiServerError as error:
                log.warning("node not registered", node=self._name, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._uid = node["metadata"]["uid"]
                return

    async def renew(self) -> None:
        """Renews until cancelled."""
        loop = asyncio.get_running_loop()
        status_due = loop.time()
        while True:
            try:
                await self._renew_lease()
                # A node comes back from Unknown by its status only: after a renewal that failed or took
                # long, because the API server was unreachable, it is written at once.
                if loop.time() >= status_due:
                    await self._write_status()
                    status_due = loop.time() + _STATUS_EVERY * self._lease_seconds
            except ApiServerError as error:
                if error.status == 404:
                    # The Node was deleted; a node registers again for as long as its process runs.
                    await self.register()
                status_due = loop.time()
                await asyncio.sleep(min(_RETRY_SECONDS, self._lease_seconds))
            else:
                await asyncio.sleep(self._lease_seconds)

    async def _create(self) -> Json:
        wanted = node_object(self._name, self._labels, self._pod_cidr, self._status())
        try:
            return await self._api.post("/api/v1/nodes", wanted)
        except ApiServerError as error:
            if error.status != 409:
                raise
            return await self._write_status()

    async def _write_status(self) -> Json:
        return await self._api.patch(
            f"/api/v1/nodes/{self._name}/status", {"status": self._status()}, STRATEGIC_MERGE_PATCH
        )

    async def _renew_lease(self) -> None:
        duration_seconds = max(1, round(self._lease_seconds * 4))
        lease = lease_object(self._name, self._uid, rfc3339_micro(), duration_seconds)
        try:
            await self._api.patch(f"{LEASES}/{self._name}", {"spec": lease["spec"]}, STRATEGIC_MERGE_PATCH)
        except ApiServerError as error:
            if error.status != 404:
                raise
            await self._api.post(LEASES, lease)
