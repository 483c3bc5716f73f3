"""One pod on a node: set up, init containers in order, containers side by side, status, end."""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import structlog

from warmfleet_devcluster.clock import rfc3339
from warmfleet_devcluster.node.container.backoff import Backoff
from warmfleet_devcluster.node.container.pod_environment import PodEnvironment, PodSandbox
from warmfleet_devcluster.node.container.runner import ContainerRunner
from warmfleet_devcluster.node.errors import ImageError, NodeError
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.host.network import AddressPool, connect_pod, disconnect_pod
from warmfleet_devcluster.node.pod.etc_files import etc_files
from warmfleet_devcluster.node.pod.status import FINAL_PHASES, PodFacts, pod_status
from warmfleet_devcluster.node.references.pod_objects import PodObjects
from warmfleet_devcluster.node.settings import NodeSettings
from warmfleet_devcluster.node.volumes.pod_volumes import PodVolumes
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.kubernetes.media_types import STRATEGIC_MERGE_PATCH

log = structlog.get_logger()

Json = dict[str, Any]

_DEFAULT_GRACE_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = 2.0
_COALESCE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class NodeResources:
    """What every pod of a node uses: API client, addresses, images, settings."""

    api: KubernetesClient
    addresses: AddressPool
    images: ImageList
    settings: NodeSettings
    allocatable: Mapping[str, str]
    probe_session: aiohttp.ClientSession
    cluster_env: Mapping[str, str]


class PodRunner:
    """Runs one pod from its binding to its deletion; `task` ends when the node holds nothing of it."""

    def __init__(self, pod: Json, node: NodeResources) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        self.uid: str = metadata["uid"]
        self._pod = pod
        self._node = node
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._start_time = rfc3339()
        self._changed = asyncio.Event()
        self._stop_asked = asyncio.Event()
        self._grace_seconds = 0.0
        self._deleted = False
        """The API server waits for this node to confirm the deletion."""
        self._written: Json = pod.get("status", {})
        self._over = self._written.get("phase") in FINAL_PHASES
        """It ended under an earlier process of this node: only its deletion remains to be confirmed."""
        folder = node.settings.state / "pods" / self.uid
        objects = PodObjects(node.api, pod)
        ratio = node.settings.time_ratio
        self._shared = PodEnvironment(
            folder=folder,
            volumes=PodVolumes(pod, folder / "volumes", objects, node.images),
            objects=objects,
            images=node.images,
            probe_session=node.probe_session,
            backoff=Backoff().scaled(ratio),
            retry_seconds=_RETRY_SECONDS * ratio,
            cluster_env=node.cluster_env,
            host_ip=node.settings.address,
            allocatable=node.allocatable,
            pod=lambda: self._pod,
            changed=self._changed.set,
        )
        self._sandbox: PodSandbox | None = None
        """None before the pod has a network and after it is taken off it."""
        self._pod_ip: str = self._written.get("podIP", "")
        policy = spec.get("restartPolicy", "Always")
        before = {
            status["name"]: status
            for status in (
                *self._written.get("containerStatuses", []),
                *self._written.get("initContainerStatuses", []),
            )
        }
        self._inits = [
            ContainerRunner(
                container,
                self._shared,
                restart_policy=container.get("restartPolicy", "Never" if policy == "Never" else "OnFailure"),
                sidecar=container.get("restartPolicy") == "Always",
                before=before.get(container["name"]),
            )
            for container in spec.get("initContainers", [])
        ]
        self._mains = [
            ContainerRunner(
                container, self._shared, restart_policy=policy, before=before.get(container["name"])
            )
            for container in spec["containers"]
        ]
        self.update(pod)
        self.task = asyncio.create_task(self._run())

    def update(self, pod: Json) -> None:
        """A newer version of the pod from the API server."""
        self._pod = pod
        self._changed.set()
        if "deletionTimestamp" in pod["metadata"]:
            self._deleted = True
            self.stop(float(pod["metadata"].get("deletionGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)))

    def removed(self) -> None:
        """The object was force-deleted: kills the pod at once."""
        self._deleted = False
        self.stop(0.0)

    def stop(self, grace_seconds: float) -> None:
        """Ends the pod's containers; a later call can only shorten the grace period."""
        if not self._stop_asked.is_set():
            self._grace_seconds = grace_seconds
            self._stop_asked.set()
        elif grace_seconds < self._grace_seconds:
            self._grace_seconds = grace_seconds
            asyncio.get_running_loop().call_later(grace_seconds, self._kill)

    def container(self, name: str) -> ContainerRunner | None:
        """The container of that name, init containers included."""
        return next((runner for runner in (*self._mains, *self._inits) if runner.name == name), None)

    def is_named(self, namespace: str, name: str) -> bool:
        metadata = self._pod["metadata"]
        return (metadata["namespace"], metadata["name"]) == (namespace, name)

    @property
    def grace_seconds(self) -> float:
        """How long the pod may take to end, unless its deletion asks for another time."""
        return float(self._pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS))

    @property
    def namespace_fd(self) -> int | None:
        """The pod's network namespace while it has one."""
        return self._sandbox.network.namespace_fd if self._sandbox else None

    async def _run(self) -> None:
        publishing = asyncio.create_task(self._publish_changes())
        try:
            if not self._over and not self._stop_asked.is_set():
                try:
                    await self._live()
                finally:
                    self._kill()
                    await self._release_network()
            self._changed.set()
            await self._stop_asked.wait()
            publishing.cancel()
            await asyncio.gather(publishing, return_exceptions=True)
            await self._publish()
            if self._deleted:
                await self._confirm_deletion()
        finally:
            publishing.cancel()
            await asyncio.to_thread(self._remove_files)

    async def _live(self) -> None:
        """From the first volume to the end of the last container."""
        following = asyncio.create_task(self._start_and_follow())
        stopping = asyncio.create_task(self._stop_asked.wait())
        refreshing = asyncio.create_task(self._refresh_volumes())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await self._stop_containers()
            await following
        finally:
            for task in (following, stopping, refreshing):
                task.cancel()
            await asyncio.gather(following, stopping, refreshing, return_exceptions=True)

    async def _start_and_follow(self) -> None:
        sandbox = await self._prepare()
        if sandbox is None:
            return
        sidecars: list[asyncio.Task[None]] = []
        try:
            for runner, manifest in zip(
                self._inits, self._pod["spec"].get("initContainers", []), strict=True
            ):
                if manifest.get("restartPolicy") == "Always":
                    sidecars.append(asyncio.create_task(runner.run(sandbox)))
                    await self._first(runner.has_started.wait(), self._stop_asked.wait())
                else:
                    await runner.run(sandbox)
                    if not runner.view().succeeded:
                        return
                if self._stop_asked.is_set():
                    return
            for runner in self._mains:
                runner.wait_because("ContainerCreating")
            await asyncio.gather(*(runner.run(sandbox) for runner in self._mains))
        finally:
            # Sidecars outlive the containers they serve, in reverse order of their start.
            if sidecars and not self._stop_asked.is_set():
                for runner in reversed(self._inits):
                    await runner.stop(_DEFAULT_GRACE_SECONDS)
            await asyncio.gather(*sidecars)

    async def _prepare(self) -> PodSandbox | None:
        """Makes network and volumes, retrying until both exist. None if the pod was stopped first."""
        for runner in (*self._inits, *self._mains):
            runner.wait_because("PodInitializing" if self._inits else "ContainerCreating")
        while not self._stop_asked.is_set():
            try:
                sandbox = self._sandbox or await self._connect()
                await self._shared.volumes.prepare(self._shared.context(self._pod_ip))
            except (NodeError, OSError) as error:
                reason = "ErrImagePull" if isinstance(error, ImageError) else "ContainerCreating"
                for runner in (*self._inits, *self._mains):
                    runner.wait_because(reason, str(error))
                await self._first(asyncio.sleep(self._shared.retry_seconds), self._stop_asked.wait())
            else:
                return sandbox
        return None

    async def _connect(self) -> PodSandbox:
        node = self._node
        address = node.addresses.take()
        interface = "pod" + hashlib.sha256(self.uid.encode()).hexdigest()[:12]
        try:
            network = await connect_pod(address, node.settings.address, interface)
        except BaseException:
            node.addresses.give_back(address)
            raise
        files = etc_files(self._pod, address, node.settings.dns, node.settings.cluster_domain)
        sandbox = self._sandbox = PodSandbox(network, files)
        self._pod_ip = address
        self._changed.set()
        return sandbox

    async def _stop_containers(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._grace_seconds
        manifests = self._pod["spec"].get("initContainers", [])
        plain = [
            runner
            for runner, manifest in zip(self._inits, manifests, strict=True)
            if manifest.get("restartPolicy") != "Always"
        ]
        await asyncio.gather(*(runner.stop(self._grace_seconds) for runner in (*self._mains, *plain)))
        for runner in reversed(self._inits):
            await runner.stop(max(0.0, deadline - loop.time()))

    async def _refresh_volumes(self) -> None:
        while True:
            await asyncio.sleep(self._node.settings.volume_refresh_seconds)
            if self._sandbox is not None:
                with contextlib.suppress(NodeError, OSError):  # files stay as they are until it succeeds
                    await self._shared.volumes.refresh(self._shared.context(self._pod_ip))

    async def _publish_changes(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(_COALESCE_SECONDS)
            self._changed.clear()
            if not await self._publish():
                await asyncio.sleep(1.0)
                self._changed.set()

    async def _publish(self) -> bool:
        """Writes the status if it, or what others made of it, has changed; False if to be tried again."""
        if self._over:
            return True
        status = pod_status(
            self._facts(),
            [runner.view() for runner in self._inits],
            [runner.view() for runner in self._mains],
            previous=self._written,
            now=rfc3339(),
        )
        if (
            status == self._written
            and _conditions(status).items() <= _conditions(self._pod.get("status", {})).items()
        ):
            return True
        try:
            body = {"metadata": {"uid": self.uid}, "status": _patch(status)}
            await self._node.api.patch(f"{self._path}/status", body, STRATEGIC_MERGE_PATCH)
        except ApiServerError as error:
            log.warning("status not written", pod=self._path, error=str(error))
            # Deleted, or another pod of the same name: there is no status to write.
            return error.status in (404, 409)
        self._written = status
        return True

    def _facts(self) -> PodFacts:
        spec = self._pod["spec"]
        known = _conditions(self._pod.get("status", {}))
        gates = [gate["conditionType"] for gate in spec.get("readinessGates", [])]
        return PodFacts(
            restart_policy=spec.get("restartPolicy", "Always"),
            gates_open=all(known.get(gate) == "True" for gate in gates),
            generation=self._pod["metadata"].get("generation", 0),
            host_ip=self._node.settings.address,
            pod_ip=self._pod_ip,
            start_time=self._start_time,
        )

    async def _confirm_deletion(self) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self.uid},
        }
        while True:
            try:
                await self._node.api.delete(self._path, options)
            except ApiServerError as error:
                if error.status not in (404, 409):
                    await asyncio.sleep(1.0)
                    continue
            return

    async def _release_network(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await disconnect_pod(sandbox.network)
            self._node.addresses.give_back(sandbox.network.address)

    def _kill(self) -> None:
        for runner in (*self._mains, *self._inits):
            runner.kill()

    def _remove_files(self) -> None:
        self._shared.volumes.remove()
        shutil.rmtree(self._shared.folder, ignore_errors=True)

    @staticmethod
    async def _first(*waits: Any) -> None:
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


def _conditions(status: Json) -> dict[str, str]:
    """Type -> status. The node controller writes them, too: it marks pods of a silent node unready."""
    return {condition["type"]: condition["status"] for condition in status.get("conditions", [])}


def _patch(status: Json) -> Json:
    """A status as a strategic merge patch that removes every field of the previous one."""
    addresses: Json = {
        key: [{"$patch": "replace"}, *status[key]] for key in ("podIPs", "hostIPs") if key in status
    }
    # Conditions are merged by type, field by field: an old reason has to be taken away.
    conditions = [{"reason": None, "message": None, **condition} for condition in status["conditions"]]
    return {**status, **addresses, "conditions": conditions}
