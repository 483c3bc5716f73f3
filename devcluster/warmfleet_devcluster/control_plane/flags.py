"""The command line of each component, from the paths of its files. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from warmfleet_devcluster.control_plane.certificates import KeyPair
from warmfleet_devcluster.network.addresses import (
    API_SERVER_ADDRESS,
    API_SERVER_PORT,
    CLUSTER_DOMAIN,
    ETCD_CLIENT_PORT,
    ETCD_PEER_PORT,
    POD_NETWORK,
    SERVICE_NETWORK,
)

SERVICE_ACCOUNT_ISSUER: Final = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"

# At 20 requests a second, the default, a scale test would measure the controllers.
_CLIENT_LIMITS: Final = {"kube-api-qps": "300", "kube-api-burst": "600"}

AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # Reads outnumber writes a hundredfold, and the log is read to see what was written.
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneFiles:
    """Where the components find each other's credentials and keep what they write."""

    etcd_folder: Path
    authority: KeyPair
    api_server: KeyPair
    kubelet_client: KeyPair
    service_accounts: KeyPair
    controller_manager_kubeconfig: Path
    scheduler_kubeconfig: Path
    audit_policy: Path
    audit_log: Path


def etcd_flags(files: ControlPlaneFiles) -> list[str]:
    """Etcd on loopback; its data need not survive a power cut, so it never waits for the disk."""
    client = f"http://127.0.0.1:{ETCD_CLIENT_PORT}"
    peer = f"http://127.0.0.1:{ETCD_PEER_PORT}"
    return _flags(
        {
            "name": "devcluster",
            "data-dir": str(files.etcd_folder),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"devcluster={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
    )


def api_server_flags(files: ControlPlaneFiles) -> list[str]:
    """The API server, with node identities, audit of every write, and kubelets that are verified."""
    return _flags(
        {
            "etcd-servers": f"http://127.0.0.1:{ETCD_CLIENT_PORT}",
            "bind-address": str(API_SERVER_ADDRESS),
            "advertise-address": str(API_SERVER_ADDRESS),
            "secure-port": str(API_SERVER_PORT),
            "tls-cert-file": str(files.api_server.certificate),
            "tls-private-key-file": str(files.api_server.key),
            "client-ca-file": str(files.authority.certificate),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-cluster-ip-range": str(SERVICE_NETWORK),
            "service-account-issuer": SERVICE_ACCOUNT_ISSUER,
            "service-account-key-file": str(files.service_accounts.certificate),
            "service-account-signing-key-file": str(files.service_accounts.key),
            "kubelet-client-certificate": str(files.kubelet_client.certificate),
            "kubelet-client-key": str(files.kubelet_client.key),
            "kubelet-certificate-authority": str(files.authority.certificate),
            "kubelet-preferred-address-types": "InternalIP",
            "audit-policy-file": str(files.audit_policy),
            "audit-log-path": str(files.audit_log),
            "audit-log-maxsize": "512",
            "audit-log-maxbackup": "1",
            "profiling": "false",
        }
    )


def controller_manager_flags(files: ControlPlaneFiles, node_grace_seconds: int) -> list[str]:
    """Every default controller."""
    return _flags(
        {
            "kubeconfig": str(files.controller_manager_kubeconfig),
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
            "cluster-cidr": str(POD_NETWORK),
            "allocate-node-cidrs": "false",
            "root-ca-file": str(files.authority.certificate),
            "cluster-signing-cert-file": str(files.authority.certificate),
            "cluster-signing-key-file": str(files.authority.key),
            "service-account-private-key-file": str(files.service_accounts.key),
            "use-service-account-credentials": "true",
            "node-monitor-period": "2s",
            # While the API server is unreachable, every node looks silent to this controller. Elsewhere it
            # ends when it cannot renew its Lease, and its successor starts with fresh timers. Ours runs on:
            # after an outage longer than this it marks every node Unknown until the next heartbeat.
            "node-monitor-grace-period": f"{node_grace_seconds}s",
            "horizontal-pod-autoscaler-sync-period": "5s",
            "profiling": "false",
            **_CLIENT_LIMITS,
        }
    )


def scheduler_flags(files: ControlPlaneFiles) -> list[str]:
    """The scheduler, with default plugins."""
    return _flags(
        {
            "kubeconfig": str(files.scheduler_kubeconfig),
            "bind-address": "127.0.0.1",
            "leader-elect": "false",
            "profiling": "false",
            **_CLIENT_LIMITS,
        }
    )


def _flags(values: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]
