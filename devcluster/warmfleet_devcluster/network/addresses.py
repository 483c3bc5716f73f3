"""Addresses and names inside the cluster's network namespace. The host never routes to any of them."""

from ipaddress import IPv4Address, IPv4Network
from typing import Final

API_SERVER_ADDRESS: Final = IPv4Address("10.10.0.1")
API_SERVER_PORT: Final = 6443
NODE_NETWORK: Final = IPv4Network("10.10.0.0/24")
_FIRST_NODE: Final = 10
MAX_NODES: Final = 64
"""Process nodes and real node of one devcluster; hollow nodes have no address of their own."""

POD_NETWORK: Final = IPv4Network("10.244.0.0/16")
SERVICE_NETWORK: Final = IPv4Network("10.96.0.0/16")
KUBERNETES_SERVICE_ADDRESS: Final = IPv4Address("10.96.0.1")
"""The `kubernetes` Service: the API server always takes the first address of the network."""
DNS_ADDRESS: Final = IPv4Address("10.96.0.10")

CLUSTER_DOMAIN: Final = "cluster.local"
ETCD_CLIENT_PORT: Final = 2379
ETCD_PEER_PORT: Final = 2380


def node_name(index: int) -> str:
    """Process nodes are counted from zero, `node-0`; the real node follows them."""
    return f"node-{index}"


def node_address(index: int) -> IPv4Address:
    """Where node `index` serves its kubelet API: 10.10.0.10 and up."""
    assert 0 <= index < MAX_NODES, index
    return NODE_NETWORK[_FIRST_NODE + index]


def pod_network(index: int) -> IPv4Network:
    """The addresses of node `index`'s pods: 10.244.0.0/24 and up."""
    assert 0 <= index < MAX_NODES, index
    return IPv4Network((int(POD_NETWORK.network_address) + index * 256, 24))
