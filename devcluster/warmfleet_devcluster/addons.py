"""`python -m warmfleet_devcluster.addons`: Services, DNS, NetworkPolicies and volumes of a devcluster.

Runs inside the cluster's network namespace, as its administrator, until SIGTERM.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from warmfleet_devcluster.control_plane.provisioner import STORAGE_CLASS_OBJECT, provision
from warmfleet_devcluster.network import netfilter
from warmfleet_devcluster.network.addresses import DNS_ADDRESS
from warmfleet_devcluster.network.dns_server import DnsServer
from warmfleet_devcluster.network.endpoints import frontends
from warmfleet_devcluster.network.names import Zone, make_zone
from warmfleet_devcluster.network.policies import Namespace, NetworkPolicy, Pod, isolated_pods
from warmfleet_devcluster.network.policy_rules import policy_rules
from warmfleet_devcluster.network.service_rules import service_rules
from warmfleet_devcluster.settings import WATCH_TIMING
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import Informer, Watched

_SETTLE_SECONDS: Final = 0.02
"""Changes come in bursts; the rules are written once per burst."""
_RETRY_SECONDS: Final = 1.0
_CONFLICT: Final = 409

Json = dict[str, Any]
T = TypeVar("T")

DNS_SERVICE: Final[Json] = {
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
    """Keeps nftables rules, DNS zone and volumes equal to what the cluster's objects ask for."""

    def __init__(self, client: KubernetesClient, volumes_folder: Path) -> None:
        self._client = client
        self._volumes_folder = volumes_folder
        self._network_changed = asyncio.Event()
        self._policies_changed = asyncio.Event()
        self._volumes_changed = asyncio.Event()
        self.services = self._informer("v1", "services", Json, self._network_changed)
        self.slices = self._informer("discovery.k8s.io/v1", "endpointslices", Json, self._network_changed)
        policies = "networking.k8s.io/v1", "networkpolicies"
        self.policies = self._informer(*policies, NetworkPolicy, self._policies_changed)
        self.pods = self._informer("v1", "pods", Pod, self._policies_changed)
        self.namespaces = self._informer("v1", "namespaces", Namespace, self._policies_changed)
        self.claims = self._informer("v1", "persistentvolumeclaims", Json, self._volumes_changed)
        self.volumes = self._informer("v1", "persistentvolumes", Json, self._volumes_changed)
        self.zone = Zone()
        self._service_rules: list[bytes] = []
        self._policy_rules: list[bytes] = []

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        await self._create("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS_OBJECT)
        await self._create("/api/v1/namespaces/kube-system/services", DNS_SERVICE)
        server = DnsServer(lambda: self.zone)
        async with asyncio.TaskGroup() as group:
            followed: tuple[Informer[Any], ...] = (
                *(self.services, self.slices, self.claims, self.volumes),
                *(self.policies, self.pods, self.namespaces),
            )
            for informer in followed:
                group.create_task(informer.run())
            for informer in followed:
                await informer.synced.wait()
            group.create_task(_on_change(self._network_changed, self._follow_network))
            group.create_task(_on_change(self._policies_changed, self._follow_policies))
            group.create_task(_on_change(self._volumes_changed, self._follow_volumes))
            # The supervisor takes an answer on the DNS port for readiness.
            await self._follow_network()
            await server.start(str(DNS_ADDRESS))
            log.info("serving names", address=str(DNS_ADDRESS))

    async def _follow_network(self) -> None:
        services, slices = list(self.services.objects.values()), list(self.slices.objects.values())
        self.zone = make_zone(services, slices)
        # The DNS server runs here: its address is not forwarded to a pod.
        found = [frontend for frontend in frontends(services, slices) if frontend.address != str(DNS_ADDRESS)]
        rules = service_rules(found)
        if rules != self._service_rules:
            netfilter.send(rules)
            self._service_rules = rules

    async def _follow_policies(self) -> None:
        rules = policy_rules(
            isolated_pods(
                self.policies.objects.values(), self.pods.objects.values(), self.namespaces.objects.values()
            )
        )
        if rules != self._policy_rules:
            netfilter.send(rules)
            self._policy_rules = rules

    async def _follow_volumes(self) -> None:
        claims, volumes = list(self.claims.objects.values()), list(self.volumes.objects.values())
        await provision(self._client, claims, volumes, self._volumes_folder)

    def _informer(self, api_version: str, plural: str, type_: type[T], changed: asyncio.Event) -> Informer[T]:
        return Informer(
            self._client, Watched(api_version, plural, type_), timing=WATCH_TIMING, on_change=changed.set
        )

    async def _create(self, path: str, body: Json) -> None:
        try:
            await self._client.post(path, body)
        except ApiServerError as error:
            if error.status != _CONFLICT:
                raise


async def _on_change(changed: asyncio.Event, follow: Callable[[], Awaitable[None]]) -> None:
    while True:
        await changed.wait()
        await asyncio.sleep(_SETTLE_SECONDS)
        changed.clear()
        try:
            await follow()
        except (ApiServerError, OSError) as error:
            log.warning("cannot follow a change", error=str(error))
            changed.set()
            await asyncio.sleep(_RETRY_SECONDS)


async def _serve(kubeconfig: Path, volumes_folder: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with KubernetesClient.connect(kubeconfig, user_agent="warmfleet-devcluster-addons") as client:
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
