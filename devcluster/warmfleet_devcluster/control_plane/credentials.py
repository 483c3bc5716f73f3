"""Every certificate and kubeconfig of a devcluster, written into the state folder."""

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

import yaml

from warmfleet_devcluster.control_plane.certificates import (
    CertificateAuthority,
    KeyPair,
    service_account_keys,
    write_private,
)
from warmfleet_devcluster.control_plane.flags import AUDIT_POLICY, ControlPlaneFiles
from warmfleet_devcluster.control_plane.kubeconfig import write_kubeconfig
from warmfleet_devcluster.network.addresses import (
    API_SERVER_ADDRESS,
    API_SERVER_PORT,
    CLUSTER_DOMAIN,
    KUBERNETES_SERVICE_ADDRESS,
    node_address,
    node_name,
)
from warmfleet_devcluster.state import StateFolder

INNER_URL: Final = f"https://{API_SERVER_ADDRESS}:{API_SERVER_PORT}"
"""URL of the API server inside the cluster's network."""
KUBELET_CLIENT: Final = "kube-apiserver-kubelet-client"
"""User name of the API server at a node's kubelet API, which refuses any other client."""
_ADMINISTRATORS: Final = "system:masters"


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """What one node authenticates with: its kubeconfig, and its serving certificate."""

    kubeconfig: Path
    serving: KeyPair


class Credentials:
    """Makes and writes them at every start; `host_url` is the API server's URL on the host."""

    def __init__(self, folder: StateFolder, host_url: str) -> None:
        self._folder = folder
        self._authority = CertificateAuthority(folder.pki)
        self.authority = self._authority.files.certificate
        self.admin = self._authority.client(
            "admin", user="warmfleet-devcluster-admin", groups=[_ADMINISTRATORS]
        )
        self._write(folder.kubeconfig, self.admin, server=host_url)
        self.inner_admin = folder.pki / "admin.kubeconfig"
        self._write(self.inner_admin, self.admin)

    def control_plane(self) -> ControlPlaneFiles:
        """Files of etcd, API server, controller-manager and scheduler."""
        names = ["localhost", "kubernetes"]
        names += [f"kubernetes.default{suffix}" for suffix in ("", ".svc", f".svc.{CLUSTER_DOMAIN}")]
        addresses = [API_SERVER_ADDRESS, KUBERNETES_SERVICE_ADDRESS, IPv4Address("127.0.0.1")]
        policy = self._folder.path / "audit-policy.yaml"
        write_private(policy, yaml.safe_dump(AUDIT_POLICY).encode())
        return ControlPlaneFiles(
            etcd_folder=self._folder.part("etcd"),
            authority=self._authority.files,
            api_server=self._authority.server("kube-apiserver", names=names, addresses=addresses),
            kubelet_client=self._authority.client(
                "kubelet-client", user=KUBELET_CLIENT, groups=[_ADMINISTRATORS]
            ),
            service_accounts=service_account_keys(self._folder.pki),
            controller_manager_kubeconfig=self._component("kube-controller-manager"),
            scheduler_kubeconfig=self._component("kube-scheduler"),
            audit_policy=policy,
            audit_log=self._folder.audit_log,
        )

    def node(self, index: int) -> NodeCredentials:
        """A node's own identity; NodeRestriction limits it to what its own pods need."""
        name = node_name(index)
        kubeconfig = self._folder.pki / f"{name}.kubeconfig"
        user = self._authority.client(name, user=f"system:node:{name}", groups=["system:nodes"])
        self._write(kubeconfig, user)
        serving = self._authority.server(f"{name}-serving", names=[name], addresses=[node_address(index)])
        return NodeCredentials(kubeconfig, serving)

    def _component(self, name: str) -> Path:
        path = self._folder.pki / f"{name}.kubeconfig"
        self._write(path, self._authority.client(name, user=f"system:{name}"))
        return path

    def _write(self, path: Path, user: KeyPair, *, server: str = INNER_URL) -> None:
        write_kubeconfig(path, server=server, authority=self.authority, user=user)
