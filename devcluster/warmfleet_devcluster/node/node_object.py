"""The Node object with its status, and its Lease. Pure."""

import os
import platform
from collections.abc import Mapping
from typing import Any, Final

Json = dict[str, Any]

KUBELET_VERSION: Final = "v1.36.3"
_CONDITIONS: Final = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "the node has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "the node has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "the node has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "the node is posting ready status"),
)
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


def machine_capacity(max_pods: int) -> dict[str, str]:
    """What this machine has; several nodes of one machine each claim all of it."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory_bytes // 1024}Ki",
        "ephemeral-storage": "100Gi",
        "pods": str(max_pods),
    }


def node_object(name: str, labels: Mapping[str, str], pod_cidr: str, status: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(
                    platform.machine(), "amd64"
                ),
                **labels,
            },
        },
        "spec": {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]} if pod_cidr else {},
        "status": status,
    }


def node_status(
    name: str,
    *,
    address: str,
    kubelet_port: int,
    capacity: Mapping[str, str],
    since: str,
    now: str,
) -> Json:
    """`since` is when the node became ready, `now` the heartbeat; both RFC 3339.

    A node without a kubelet API has no address and port 0.
    """
    return {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": [
            {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
            }
            for kind, value, reason, message in _CONDITIONS
        ],
        "addresses": [
            *([{"type": "InternalIP", "address": address}] if address else []),
            {"type": "Hostname", "address": name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}} if kubelet_port else {},
        "nodeInfo": {
            "machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": platform.release(),
            "osImage": "warmfleet process node", "containerRuntimeVersion": "process://1",
            "kubeletVersion": KUBELET_VERSION, "kubeProxyVersion": "", "operatingSystem": "linux",
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64"),
        },
        # Exec and port-forward then arrive as WebSockets instead of SPDY.
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
    }  # fmt: skip


def lease_object(name: str, node_uid: str, now: str, duration_seconds: int) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": "kube-node-lease",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": duration_seconds, "renewTime": now},
    }
