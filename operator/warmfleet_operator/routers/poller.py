"""Polls the routers for their view of the workers."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec
import structlog

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.objects.kinds import POD
from warmfleet_operator.routers.client import RouterClient, RouterRequest
from warmfleet_operator.routers.fleet import FleetAnswer, FleetView, merged_view
from warmfleet_operator.scaling.signals import MAX_ROUTERS
from warmfleet_operator.settings import OperatorSettings

ANSWER_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
FLEET: Final = RouterRequest(
    "/internal/fleet", msgspec.json.Decoder(FleetAnswer).decode, MAX_ANSWER_BYTES, ANSWER_SECONDS
)
FRESH_SECONDS: Final = 45.0
"""An answer stays valid for this long, so that one lost answer changes nothing."""

log = structlog.get_logger("warmfleet.operator")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    deletion_timestamp: str | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _Status(msgspec.Struct, frozen=True):
    ip: str = msgspec.field(name="podIP", default="")
    conditions: tuple[_Condition, ...] | None = None


class _RouterPod(msgspec.Struct, frozen=True):
    """The fields of a pod that decide whether it is asked."""

    metadata: _Metadata
    status: _Status = _Status()

    @property
    def ready(self) -> bool:
        """Whether it has an address, takes requests, and was not deleted."""
        conditions = {item.type: item.status for item in self.status.conditions or ()}
        serves = bool(self.status.ip) and conditions.get("Ready") == "True"
        return serves and self.metadata.deletion_timestamp is None


class RouterPoller:
    """Polls every ready router pod and keeps its last answer.

    Call `poll` every few seconds and read `view`; reconciliations never wait for a router.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        client: RouterClient,
        settings: OperatorSettings,
        on_change: Callable[[FleetView, FleetView], None],
    ) -> None:
        """`on_change` receives the view before and after each poll."""
        self._cluster = cluster
        self._client = client
        self._settings = settings
        self._on_change = on_change
        self._answers: dict[str, tuple[float, FleetAnswer]] = {}
        self.view = FleetView()
        self.addresses: Mapping[str, str] = {}
        """Addresses of ready router pods by uid, as of the last time that they could be listed; of at most
        `MAX_ROUTERS`."""
        self.ready_routers = 0
        """All that were ready then."""

    async def poll(self) -> None:
        """Poll all routers once. Does not raise; `view.problem` holds the error."""
        before = self.view
        try:
            await self._look()
            addresses = self.addresses
            answers = await self._client.ask(addresses, FLEET)
        except WarmfleetError as error:
            # The set of routers is unknown; their last answers count for as long as they are fresh.
            self.view = self._merged(before.routers, str(error))
        else:
            self._answers |= answers.by_router
            for uid in self._answers.keys() - addresses.keys():
                del self._answers[uid]
            self.view = self._merged(self.ready_routers, answers.problem)
        if self.view.problem and self.view.problem != before.problem:
            log.warning("a router does not answer", reason=self.view.problem)
        self._on_change(before, self.view)

    async def find(self) -> None:
        """Look which routers are ready, without asking them. Does not raise: `poll` reports errors."""
        with suppress(WarmfleetError):
            await self._look()

    async def _look(self) -> None:
        """Which router pods are ready."""
        pods = await self._cluster.selected(
            POD,
            self._settings.release_namespace,
            _RouterPod,
            labels=self._settings.router_pod_labels,
            # Evicted and failed pods stay in the cluster, in any number.
            fields={"status.phase": "Running"},
        )
        ready = {pod.metadata.uid: pod.status.ip for pod in pods if pod.ready}
        self.addresses, self.ready_routers = dict(islice(ready.items(), MAX_ROUTERS)), len(ready)

    def _merged(self, routers: int, problem: str) -> FleetView:
        oldest = time.monotonic() - FRESH_SECONDS
        fresh = [answer for at, answer in self._answers.values() if at >= oldest]
        return merged_view(fresh, routers=routers, problem=problem)
