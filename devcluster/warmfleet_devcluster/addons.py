"""`python -m warmfleet_devcluster.addons`: Services, DNS and volumes of one devcluster, until SIGTERM.

Runs inside the cluster's network namespace, as its administrator.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import structlog

from warmfleet_devcluster.api_client import ApiClient, ApiError
from warmfleet_devcluster.control_plane.provisioner import STORAGE_CLASS_OBJECT, provision
from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.addresses import DNS_ADDRESS
from warmfleet_devcluster.network.dns_server import DnsServer
from warmfleet_devcluster.network.endpoints import frontends
from warmfleet_devcluster.network.mirror import Mirror
from warmfleet_devcluster.network.names import Zone, make_zone
from warmfleet_devcluster.network.service_rules import service_rules

_SETTLE_SECONDS: Final = 0.02
"""Changes come in bursts; the rules are written once per burst."""
_RETRY_SECONDS: Final = 1.0
_CONFLICT: Final = 409

DNS_SERVICE: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
    "spec": {
        "clusterIP": str(DNS_ADDRESS),
        "ports": [
            {"name": "dns", "port": 53, "protocol": "UDP"},
            {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
        ],
    },
}

log = structlog.get_logger()


class Addons:
    """Keeps nftables rules, DNS zone and volumes equal to the cluster's Services, slices and claims."""

    def __init__(self, client: ApiClient, volumes_folder: Path) -> None:
        self._client = client
        self._volumes_folder = volumes_folder
        self._network_changed = asyncio.Event()
        self._volumes_changed = asyncio.Event()
        self.services = Mirror(client, "/api/v1/services", self._network_changed.set)
        self.slices = Mirror(client, "/apis/discovery.k8s.io/v1/endpointslices", self._network_changed.set)
        self.claims = Mirror(client, "/api/v1/persistentvolumeclaims", self._volumes_changed.set)
        self.volumes = Mirror(client, "/api/v1/persistentvolumes", self._volumes_changed.set)
        self.zone = Zone()
        self._rules: list[bytes] = []

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        await self._create("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS_OBJECT)
        await self._create("/api/v1/namespaces/kube-system/services", DNS_SERVICE)
        server = DnsServer(lambda: self.zone)
        async with asyncio.TaskGroup() as group:
            for mirror in (self.services, self.slices, self.claims, self.volumes):
                group.create_task(mirror.run())
            for mirror in (self.services, self.slices, self.claims, self.volumes):
                await mirror.listed.wait()
            group.create_task(_on_change(self._network_changed, self._follow_network))
            group.create_task(_on_change(self._volumes_changed, self._follow_volumes))
            # The supervisor takes an answer on the DNS port for readiness.
            await self._follow_network()
            await server.start(str(DNS_ADDRESS))
            log.info("serving names", address=str(DNS_ADDRESS))

    async def _follow_network(self) -> None:
        services, slices = self.services.objects, self.slices.objects
        self.zone = make_zone(services, slices)
        # The DNS server runs here: its address is not forwarded to a pod.
        found = [frontend for frontend in frontends(services, slices) if frontend.address != str(DNS_ADDRESS)]
        rules = service_rules(found)
        if rules != self._rules:
            netfilter.send(rules)
            self._rules = rules

    async def _follow_volumes(self) -> None:
        await provision(self._client, self.claims.objects, self.volumes.objects, self._volumes_folder)

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        try:
            await self._client.post(path, body)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise


async def _on_change(changed: asyncio.Event, follow: Callable[[], Awaitable[None]]) -> None:
    while True:
        await changed.wait()
        await asyncio.sleep(_SETTLE_SECONDS)
        changed.clear()
        try:
            await follow()
        except (ApiError, OSError) as error:
            log.warning("cannot follow a change", error=str(error))
            changed.set()
            await asyncio.sleep(_RETRY_SECONDS)


async def _serve(kubeconfig: Path, volumes_folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ApiClient.from_kubeconfig(kubeconfig) as client:
        work = asyncio.create_task(Addons(client, volumes_folder).run())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        work.cancel()


def main() -> None:
    """Parse flags and serve."""
    parser = argparse.ArgumentParser(prog="python -m warmfleet_devcluster.addons", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--volumes", type=Path, required=True, help="folder for persistent volumes")
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.kubeconfig, arguments.volumes))


if __name__ == "__main__":
    main()
