"""A devcluster's processes in their order: etcd, API server, controllers and scheduler, add-ons, nodes."""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import yaml

from warmfleet_devcluster.control_plane.binaries import Binaries
from warmfleet_devcluster.control_plane.credentials import Credentials
from warmfleet_devcluster.control_plane.flags import (
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
    scheduler_flags,
)
from warmfleet_devcluster.errors import StartFailedError
from warmfleet_devcluster.lifecycle.cluster_network import ClusterNetwork
from warmfleet_devcluster.lifecycle.component import Component, ComponentPlan
from warmfleet_devcluster.lifecycle.images import image_list, image_values
from warmfleet_devcluster.lifecycle.plans import (
    addons_plan,
    hollow_plan,
    node_plan,
    real_node_plan,
    tool_plan,
)
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import ComponentState, StateFolder
from warmfleet_runtime.kubernetes.client import Json, KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError
from warmfleet_runtime.version import package_version

_POLL_SECONDS: Final = 0.1
_REQUEST_SECONDS: Final = 5.0
_USER_AGENT: Final = "warmfleet-devcluster"


class Cluster:
    """One life of a devcluster inside a locked, empty state folder."""

    def __init__(
        self, settings: DevclusterSettings, folder: StateFolder, report: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._binaries = Binaries(settings.binaries)
        self._report = report
        self._stages: list[list[Component]] = []
        self._network: ClusterNetwork | None = None
        """None before the start and after a start that could not open it."""
        self._deadline = 0.0

    @property
    def api_url(self) -> str:
        """The API server's URL on the host; empty before the network is open."""
        return self._network.api_url if self._network else ""

    @property
    def components(self) -> list[Component]:
        """Everything that was started, in this order."""
        return [component for stage in self._stages for component in stage]

    def component_states(self) -> list[ComponentState]:
        """For the state file."""
        return [ComponentState(component.plan.name, component.identity) for component in self.components]

    async def start(self) -> None:
        """Start everything and wait until it is ready; on failure the caller still calls `stop`.

        Raises:
            DevclusterError: not permitted, port busy, or a component did not become ready.
        """
        self._deadline = time.monotonic() + self._settings.ready_seconds
        network = self._network = await ClusterNetwork.open(
            nodes=self._settings.addressed_nodes, api_port=self._settings.api_port
        )
        credentials = Credentials(self._folder, network.api_url)
        self._write_images()
        async with KubernetesClient.connect(self._folder.kubeconfig, user_agent=_USER_AGENT) as client:
            await self._start_control_plane(credentials, client)
            await self._start_addons(credentials, network)
            if self._settings.addressed_nodes or self._settings.hollow:
                await self._start_nodes(credentials, client)
        self._hand_over()

    async def stop(self) -> None:
        """End everything that was started, the last first.

        An API server waits up to a minute for clients that still watch, so they end before it.
        """
        while self._stages:
            await asyncio.gather(*(component.stop() for component in self._stages[-1]))
            self._stages.pop()
        if self._network is not None:
            await self._network.close()

    async def ended_component(self) -> Component:
        """Waits until any essential component ends, which none does by itself."""
        waits = {
            asyncio.create_task(component.wait()): component
            for component in self.components
            if component.plan.essential
        }
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    def check_alive(self) -> None:
        """Raise StartFailedError, with the end of its log, if a component has ended."""
        for component in self.components:
            if component.exit_code is not None:
                raise ended_early(component, self._folder)

    def _write_images(self) -> None:
        """The list for the nodes, and the same references as values for the chart."""
        release = package_version()
        images = {"images": image_list(release, self._settings.home)}
        self._folder.images.write_text(json.dumps(images, indent=2))
        self._folder.images_values.write_text(yaml.safe_dump(image_values(release), sort_keys=False))

    async def _start_control_plane(self, credentials: Credentials, client: KubernetesClient) -> None:
        files = credentials.control_plane()
        self._report("starting etcd and the API server")
        await self._start_stage([tool_plan(self._binaries, "etcd", etcd_flags(files))])
        await self._start_stage([tool_plan(self._binaries, "kube-apiserver", api_server_flags(files))])
        await self._until(lambda: _answers(client, "/readyz"), "the API server is")
        self._report("starting controllers and scheduler")
        await self._start_stage(
            [
                tool_plan(
                    self._binaries,
                    "kube-controller-manager",
                    controller_manager_flags(files, self._settings.node_grace_seconds),
                ),
                tool_plan(self._binaries, "kube-scheduler", scheduler_flags(files)),
            ]
        )
        # No pod is admitted without a service account, which the controllers create for each namespace.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        await self._until(lambda: _answers(client, account), "controllers are")

    async def _start_addons(self, credentials: Credentials, network: ClusterNetwork) -> None:
        self._report("starting Services, names and volumes")
        await self._start_stage([addons_plan(self._folder, credentials)])
        await self._until(network.serves_names, "names are")

    async def _start_nodes(self, credentials: Credentials, client: KubernetesClient) -> None:
        count = self._settings.addressed_nodes + self._settings.hollow
        self._report(f"starting {count} nodes")
        plans = [
            node_plan(
                index, self._settings, self._folder, credentials.node(index), str(credentials.authority)
            )
            for index in range(self._settings.nodes)
        ]
        if self._settings.real_node is not None:
            own = credentials.node(self._settings.nodes)
            plans.append(real_node_plan(self._settings, self._folder, own, str(credentials.authority)))
        if self._settings.hollow:
            plans.append(hollow_plan(self._settings, credentials))
        await self._start_stage(plans)
        await self._until(lambda: _has_ready_nodes(client, count), "nodes are")

    def _hand_over(self) -> None:
        """Gives the files to the user who ran sudo."""
        if self._settings.owner is not None:
            for path in (self._folder.kubeconfig, self._folder.images_values):
                os.chown(path, *self._settings.owner)

    async def _start_stage(self, plans: Sequence[ComponentPlan]) -> None:
        assert self._network is not None
        stage: list[Component] = []
        self._stages.append(stage)
        for plan in plans:
            log = self._folder.log(plan.name)
            # Appended one by one: those that run are stopped even if the next one cannot be started.
            stage.append(await Component.start(plan, namespace=self._network.namespace, log=log))

    async def _until(self, ready: Callable[[], Awaitable[bool]], what: str) -> None:
        """Poll until it is ready, everything else lives, and time is left."""
        while not await ready():
            self.check_alive()
            if time.monotonic() > self._deadline:
                raise StartFailedError(
                    f"{what} not ready after {self._settings.ready_seconds:g} s",
                    advice=f"logs: {self._folder.logs}",
                )
            await asyncio.sleep(_POLL_SECONDS)


def ended_early(component: Component, folder: StateFolder) -> StartFailedError:
    """The error for a component that ended by itself, with the end of its log."""
    return StartFailedError(
        f"{component.plan.name} ended with code {component.exit_code}: {component.log_tail()}",
        advice=f"the whole log is {folder.log(component.plan.name)}",
    )


async def _answers(client: KubernetesClient, path: str) -> bool:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            await client.read(path, {})
    except (ApiServerError, TimeoutError):
        return False
    return True


async def _has_ready_nodes(client: KubernetesClient, count: int) -> bool:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            nodes = (await client.get("/api/v1/nodes"))["items"]
    except (ApiServerError, TimeoutError):
        return False
    return sum(_is_ready(node) for node in nodes) >= count


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
