"""A devcluster's processes in their order: etcd, API server, controllers and scheduler, network, nodes."""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import yaml

from warmfleet_devcluster.addresses import (
    API_SERVER_ADDRESS,
    API_SERVER_PORT,
    CLUSTER_DOMAIN,
    KUBERNETES_SERVICE_ADDRESS,
)
from warmfleet_devcluster.binaries import Binaries
from warmfleet_devcluster.certificates import (
    CertificateAuthority,
    service_account_keys,
    write_private,
)
from warmfleet_devcluster.component import Component, ComponentPlan
from warmfleet_devcluster.errors import StartFailedError
from warmfleet_devcluster.flags import (
    AUDIT_POLICY,
    ControlPlaneFiles,
    api_server_flags,
    controller_manager_flags,
    etcd_flags,
    scheduler_flags,
)
from warmfleet_devcluster.forwarder import HostForwarder
from warmfleet_devcluster.kubeconfig import write_kubeconfig
from warmfleet_devcluster.namespace import NetworkNamespace
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import ComponentState, StateFolder

_POLL_SECONDS = 0.1
_INNER_URL = f"https://{API_SERVER_ADDRESS}:{API_SERVER_PORT}"


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
        self._namespace: NetworkNamespace | None = None
        self._forwarder: HostForwarder | None = None
        self._deadline = 0.0
        self.api_url = ""

    @property
    def components(self) -> list[Component]:
        return [component for stage in self._stages for component in stage]

    def component_states(self) -> list[ComponentState]:
        return [ComponentState(component.plan.name, component.identity) for component in self.components]

    async def start(self) -> None:
        """Start everything and wait until it is ready; on failure the caller still calls `stop`.

        Raises:
            DevclusterError: not permitted, port busy, or a component did not become ready.
        """
        self._deadline = time.monotonic() + self._settings.ready_seconds
        self._namespace = NetworkNamespace()
        self._namespace.add_addresses([API_SERVER_ADDRESS])
        self._forwarder = HostForwarder(self._namespace, API_SERVER_ADDRESS, API_SERVER_PORT)
        port = await self._forwarder.start(self._settings.api_port)
        self.api_url = f"https://127.0.0.1:{port}"
        files = self._write_credentials()

        self._report("starting etcd and the API server")
        etcd = self._tool("etcd", etcd_flags(files))
        api_server = self._tool("kube-apiserver", api_server_flags(files))
        # Stopped in reverse: an API server waits up to a minute for clients that still watch.
        await self._start_stage([etcd])
        await self._start_stage([api_server])
        async with self._client() as client:
            await self._until(client, "/readyz", "the API server")
            self._report("starting controllers and scheduler")
            await self._start_stage(
                [
                    self._tool("kube-controller-manager", controller_manager_flags(files)),
                    self._tool("kube-scheduler", scheduler_flags(files)),
                ]
            )
            # Without it no pod is admitted: it is the first thing that the controllers do for a namespace.
            await self._until(client, "/api/v1/namespaces/default/serviceaccounts/default", "controllers")

    async def stop(self) -> None:
        """End everything that was started, clients first."""
        while self._stages:
            await asyncio.gather(*(component.stop() for component in self._stages[-1]))
            self._stages.pop()
        if self._forwarder is not None:
            await self._forwarder.close()
        if self._namespace is not None:
            self._namespace.close()

    async def ended_component(self) -> Component:
        """Waits until any component ends, which none does by itself."""
        waits = {asyncio.create_task(component.wait()): component for component in self.components}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    def _tool(self, name: str, flags: Sequence[str]) -> ComponentPlan:
        return ComponentPlan(name=name, argv=(str(self._binaries[name]), *flags))

    async def _start_stage(self, plans: Sequence[ComponentPlan]) -> None:
        assert self._namespace is not None
        stage: list[Component] = []
        self._stages.append(stage)
        for plan in plans:
            log = self._folder.log(plan.name)
            # One by one into the list: what runs is stopped, even if the next one cannot be started.
            stage.append(await Component.start(plan, namespace=self._namespace.path, log=log))

    def _client(self) -> httpx.AsyncClient:
        trust = ssl.create_default_context(cafile=str(self._folder.pki / "ca.crt"))
        trust.load_cert_chain(self._folder.pki / "admin.crt", self._folder.pki / "admin.key")
        # trust_env off: a proxy meant for the internet must not see loopback requests.
        return httpx.AsyncClient(base_url=self.api_url, verify=trust, trust_env=False, timeout=5)

    async def _until(self, client: httpx.AsyncClient, path: str, what: str) -> None:
        """Poll until `path` answers 200."""
        while not await _answers(client, path):
            self.check_alive()
            if time.monotonic() > self._deadline:
                raise StartFailedError(
                    f"{what} not ready after {self._settings.ready_seconds:g} s",
                    advice=f"logs: {self._folder.logs}",
                )
            await asyncio.sleep(_POLL_SECONDS)

    def check_alive(self) -> None:
        """Raise StartFailedError, with its last words, if a component has ended."""
        for component in self.components:
            if component.exit_code is not None:
                raise StartFailedError(
                    f"{component.plan.name} ended with code {component.exit_code}: {component.last_words()}",
                    advice=f"the whole log is {self._folder.log(component.plan.name)}",
                )

    def _write_credentials(self) -> ControlPlaneFiles:
        authority = CertificateAuthority(self._folder.pki)
        names = ["localhost", "kubernetes"]
        names += [f"kubernetes.default{suffix}" for suffix in ("", ".svc", f".svc.{CLUSTER_DOMAIN}")]
        addresses = [API_SERVER_ADDRESS, KUBERNETES_SERVICE_ADDRESS, IPv4Address("127.0.0.1")]
        admin = authority.client("admin", user="warmfleet-devcluster-admin", groups=["system:masters"])
        write_kubeconfig(
            self._folder.kubeconfig, server=self.api_url, authority=authority.files.certificate, user=admin
        )
        policy = self._folder.path / "audit-policy.yaml"
        write_private(policy, yaml.safe_dump(AUDIT_POLICY).encode())
        return ControlPlaneFiles(
            etcd_folder=self._folder.part("etcd"),
            authority=authority.files,
            api_server=authority.server("kube-apiserver", names=names, addresses=addresses),
            kubelet_client=authority.client(
                "kubelet-client", user="kube-apiserver-kubelet-client", groups=["system:masters"]
            ),
            service_accounts=service_account_keys(self._folder.pki),
            controller_manager_kubeconfig=self._component_kubeconfig(authority, "kube-controller-manager"),
            scheduler_kubeconfig=self._component_kubeconfig(authority, "kube-scheduler"),
            audit_policy=policy,
            audit_log=self._folder.audit_log,
        )

    def _component_kubeconfig(self, authority: CertificateAuthority, name: str) -> Path:
        """A kubeconfig for a component inside the cluster's network, by the identity Kubernetes gives it."""
        path = self._folder.pki / f"{name}.kubeconfig"
        user = authority.client(name, user=f"system:{name}")
        write_kubeconfig(path, server=_INNER_URL, authority=authority.files.certificate, user=user)
        return path


async def _answers(client: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await client.get(path)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
