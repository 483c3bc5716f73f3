"""One node: registers itself, renews its Lease and status, runs the pods bound to it."""

import asyncio
from typing import Any, Final

import aiohttp
import structlog

from warmfleet_devcluster.clock import rfc3339
from warmfleet_devcluster.node.heartbeat import NodeHeartbeat
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.host.network import AddressPool, prepare_node
from warmfleet_devcluster.node.node_object import machine_capacity, node_status
from warmfleet_devcluster.node.pod.runner import NodeResources, PodRunner
from warmfleet_devcluster.node.settings import NodeSettings
from warmfleet_devcluster.settings import WATCH_TIMING
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.informer import Informer, ObjectChange, Watched

Json = dict[str, Any]

_RETRY_SECONDS: Final = 1.0
_USER_AGENT: Final = "warmfleet-process-node"
log = structlog.get_logger()


class ProcessNode:
    """Runs until cancelled; then stops its pods."""

    def __init__(self, settings: NodeSettings, images: ImageList) -> None:
        self.name = settings.name
        self._settings = settings
        self._images = images
        self._addresses = AddressPool(settings.pod_cidr)
        self._capacity = {**machine_capacity(settings.max_pods), **settings.pretend}
        self._since = rfc3339()
        self._pods: dict[str, PodRunner] = {}
        """By uid."""

    async def prepare(self) -> None:
        """Makes sure that the node's address exists and that packets are passed on. Raises NodeError."""
        await prepare_node(self._settings.address)

    def find(self, namespace: str, name: str) -> PodRunner | None:
        """The pod of that name on this node."""
        return next((pod for pod in self._pods.values() if pod.is_named(namespace, name)), None)

    async def run(self) -> None:
        """Registers and serves; on cancellation stops every pod within its grace period."""
        timeout = aiohttp.ClientTimeout(total=None)
        # Every probe has a connection of its own, as from the kubelet: nothing is kept between two.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with (
            KubernetesClient.connect(self._settings.kubeconfig, user_agent=_USER_AGENT) as api,
            aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as probe_session,
        ):
            heartbeat = NodeHeartbeat(
                api,
                self.name,
                self._status,
                labels={},
                pod_cidr=self._settings.pod_cidr,
                lease_seconds=self._settings.lease_seconds,
            )
            await heartbeat.register()
            resources = NodeResources(
                api=api,
                addresses=self._addresses,
                images=self._images,
                settings=self._settings,
                allocatable=self._capacity,
                probe_session=probe_session,
                cluster_env=await self._cluster_env(api),
            )
            log.info("node registered", node=self.name, address=self._settings.address)
            renewing = asyncio.create_task(heartbeat.renew())
            try:
                await self._follow_pods(resources)
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
                await asyncio.shield(self._stop_pods())

    async def _follow_pods(self, resources: NodeResources) -> None:
        pods = Informer(
            resources.api,
            Watched("v1", "pods", Json, field_selector=f"spec.nodeName={self.name}"),
            timing=WATCH_TIMING,
            on_object=lambda change: self._follow_pod(change, resources),
        )
        await pods.run()

    def _follow_pod(self, change: ObjectChange[Json], resources: NodeResources) -> None:
        pod = change.object
        uid = pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if change.is_deleted:
            if known:
                known.removed()
            return
        if known:
            known.update(pod)
            return
        runner = self._pods[uid] = PodRunner(pod, resources)
        runner.task.add_done_callback(lambda task: self._forget(uid, task))

    def _forget(self, uid: str, task: asyncio.Task[None]) -> None:
        self._pods.pop(uid, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("pod failed on its node", uid=uid, error=repr(task.exception()))

    async def _stop_pods(self) -> None:
        runners = list(self._pods.values())
        for runner in runners:
            runner.stop(min(runner.grace_seconds, self._settings.shutdown_seconds))
        if runners:
            await asyncio.wait([runner.task for runner in runners])

    async def _cluster_env(self, api: KubernetesClient) -> dict[str, str]:
        """Where containers find the API server."""
        while True:
            try:
                service = await api.get("/api/v1/namespaces/default/services/kubernetes")
            except ApiServerError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            host, port = service["spec"]["clusterIP"], str(service["spec"]["ports"][0]["port"])
            return {
                "KUBERNETES_SERVICE_HOST": host,
                "KUBERNETES_SERVICE_PORT": port,
                "KUBERNETES_SERVICE_PORT_HTTPS": port,
            }

    def _status(self) -> Json:
        return node_status(
            self.name,
            address=self._settings.address,
            kubelet_port=self._settings.kubelet_port,
            capacity=self._capacity,
            since=self._since,
            now=rfc3339(),
        )
