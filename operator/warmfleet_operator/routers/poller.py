"""Polls the routers for their view of the workers."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_operator.cluster import Cluster
from warmfleet_operator.objects.kinds import POD
from warmfleet_operator.routers.client import RouterClient, RouterRequest
from warmfleet_operator.routers.fleet import FleetAnswer, FleetView, merged_view
from warmfleet_operator.settings import OperatorSettings

ANSWER_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024
FLEET: Final = RouterRequest(
    "/internal/fleet", msgspec.json.Decoder(FleetAnswer).decode, MAX_ANSWER_BYTES, ANSWER_SECONDS
)
MAX_ROUTERS: Final = 32
FRESH_SECONDS: Final = 45.0
"""An answer stays valid for this long, so that one lost answer changes nothing."""

log = structlog.get_logger("warmfleet.operator")


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
        """Addresses of ready router pods by uid, as of the last time that they could be listed."""

    async def poll(self) -> None:
        """Poll all routers once. Does not raise; `view.problem` holds the error."""
        before = self.view
        try:
            addresses = await self._addresses()
            answers = await self._client.ask(addresses, FLEET)
        except WarmfleetError as error:
            # The set of routers is unknown; their last answers count for as long as they are fresh.
            self.view = self._merged(before.routers, str(error))
        else:
            self.addresses = addresses
            self._answers |= answers.by_router
            for uid in self._answers.keys() - addresses.keys():
                del self._answers[uid]
            self.view = self._merged(len(addresses), answers.problem)
        if self.view.problem and self.view.problem != before.problem:
            log.warning("a router does not answer", reason=self.view.problem)
        self._on_change(before, self.view)

    async def find(self) -> None:
        """Look which routers are ready, without asking them. Does not raise: `poll` reports errors."""
        with suppress(WarmfleetError):
            self.addresses = await self._addresses()

    async def _addresses(self) -> dict[str, str]:
        """Addresses of ready router pods, by uid."""
        labels = self._settings.router_pod_labels
        pods = await self._cluster.selected(POD, self._settings.release_namespace, labels)
        ready = [pod for pod in pods if _is_ready(pod)][:MAX_ROUTERS]
        return {pod["metadata"]["uid"]: pod["status"]["podIP"] for pod in ready}

    def _merged(self, routers: int, problem: str) -> FleetView:
        oldest = time.monotonic() - FRESH_SECONDS
        fresh = [answer for at, answer in self._answers.values() if at >= oldest]
        return merged_view(fresh, routers=routers, problem=problem)


def _is_ready(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    conditions = {item["type"]: item["status"] for item in status.get("conditions") or ()}
    return (
        conditions.get("Ready") == "True"
        and bool(status.get("podIP"))
        and "deletionTimestamp" not in pod["metadata"]
    )
