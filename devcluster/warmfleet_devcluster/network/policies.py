"""Which connections of which pods NetworkPolicies allow, from policies, pods and namespaces. Pure.

A pod that a policy selects may have only connections that one of its policies allows, in each direction that
such a policy names; a connection between two pods has to be allowed by both. Connections of a pod with itself
and with its node are always allowed (https://kubernetes.io/docs/concepts/services-networking/network-policies/).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from typing import Final

import msgspec

from warmfleet_devcluster.network.addresses import DNS_ADDRESS, POD_NETWORK

_FINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})
ANYWHERE: Final = "0.0.0.0/0"


class Metadata(msgspec.Struct, frozen=True):
    """What policies read of the metadata of pods, namespaces and policies."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}


class ContainerPort(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(msgspec.Struct, frozen=True, rename="camel"):
    ports: list[ContainerPort] = []
    restart_policy: str = ""


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[Container] = []
    init_containers: list[Container] = []


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")


class Pod(msgspec.Struct, frozen=True):
    """A pod, as far as policies read it."""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Namespace(msgspec.Struct, frozen=True):
    """A namespace, as far as policies read it."""

    metadata: Metadata


class Requirement(msgspec.Struct, frozen=True):
    key: str
    operator: str
    values: list[str] = []


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A label selector; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Requirement] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            _is_met(requirement, labels) for requirement in self.match_expressions
        )


class IpBlock(msgspec.Struct, frozen=True):
    cidr: str
    excepted: list[str] = msgspec.field(default_factory=list, name="except")


class Peer(msgspec.Struct, frozen=True, rename="camel"):
    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None
    ip_block: IpBlock | None = None


class PolicyPort(msgspec.Struct, frozen=True, rename="camel"):
    port: int | str | None = None
    end_port: int | None = None
    protocol: str = "TCP"


class IngressRule(msgspec.Struct, frozen=True):
    peers: list[Peer] = msgspec.field(default_factory=list, name="from")
    ports: list[PolicyPort] = []


class EgressRule(msgspec.Struct, frozen=True):
    peers: list[Peer] = msgspec.field(default_factory=list, name="to")
    ports: list[PolicyPort] = []


class PolicySpec(msgspec.Struct, frozen=True, rename="camel"):
    pod_selector: Selector = Selector()
    policy_types: list[str] = []
    """The API server fills it in."""
    ingress: list[IngressRule] = []
    egress: list[EgressRule] = []


class NetworkPolicy(msgspec.Struct, frozen=True):
    """A NetworkPolicy of networking.k8s.io/v1."""

    metadata: Metadata
    spec: PolicySpec = PolicySpec()


@dataclass(frozen=True, slots=True, order=True)
class Allowed:
    """Connections with a network, on some ports of a protocol."""

    network: str
    """CIDR of the other side."""
    excepted: tuple[str, ...] = ()
    """CIDRs in `network` that are not meant."""
    protocol: str = ""
    """Empty: every protocol and port."""
    first_port: int = 0
    last_port: int = 0
    """0: every port of the protocol."""


@dataclass(frozen=True, slots=True, order=True)
class IsolatedPod:
    """A pod that policies select: what they allow in each direction, None where no policy restricts it."""

    address: str
    node_address: str
    ingress: tuple[Allowed, ...] | None
    egress: tuple[Allowed, ...] | None


_DNS_SERVER: Final = Pod(
    Metadata("kube-dns", "kube-system", {"k8s-app": "kube-dns"}), status=PodStatus(pod_ip=str(DNS_ADDRESS))
)
"""No pod: it runs beside the API server. Policies select it as in clusters where DNS servers are pods."""


def isolated_pods(
    policies: Iterable[NetworkPolicy], pods: Iterable[Pod], namespaces: Iterable[Namespace]
) -> tuple[IsolatedPod, ...]:
    """Every pod on a process node that a policy selects, in a fixed order."""
    live = [
        pod
        for pod in pods
        if pod.status.phase not in _FINAL_PHASES and pod.status.pod_ip and pod.status.host_ip
    ]
    by_namespace: dict[str, list[NetworkPolicy]] = defaultdict(list)
    for policy in policies:
        by_namespace[policy.metadata.namespace].append(policy)
    peers = _Peers([*live, _DNS_SERVER], {found.metadata.name: found.metadata.labels for found in namespaces})
    found = []
    for pod in live:
        if IPv4Address(pod.status.pod_ip) not in POD_NETWORK:
            continue  # hollow: nothing runs in it, but another pod may be allowed to connect to its address
        own = [
            policy
            for policy in by_namespace[pod.metadata.namespace]
            if policy.spec.pod_selector.selects(pod.metadata.labels)
        ]
        if own:
            ingress = [policy for policy in own if "Ingress" in policy.spec.policy_types]
            egress = [policy for policy in own if "Egress" in policy.spec.policy_types]
            isolated = IsolatedPod(
                pod.status.pod_ip,
                pod.status.host_ip,
                _ordered(_ingress(pod, ingress, peers)) if ingress else None,
                _ordered(_egress(egress, peers)) if egress else None,
            )
            found.append(isolated)
    return tuple(sorted(found, key=lambda pod: IPv4Address(pod.address)))


@dataclass(frozen=True, slots=True)
class _Place:
    """What one peer stands for: a network, and the pods in it."""

    network: str
    excepted: tuple[str, ...]
    pods: Sequence[Pod]


class _Peers:
    """Everything that a peer of a rule may select."""

    def __init__(self, pods: Sequence[Pod], namespace_labels: Mapping[str, Mapping[str, str]]) -> None:
        self._pods = pods
        self._namespace_labels = namespace_labels

    def places(self, peers: Sequence[Peer], namespace: str) -> Iterator[_Place]:
        """Of a rule in `namespace`; a rule without peers means every address."""
        if not peers:
            yield _Place(ANYWHERE, (), self._pods)
        for peer in peers:
            if peer.ip_block is None:
                for pod in self._selected(peer, namespace):
                    yield _Place(f"{pod.status.pod_ip}/32", (), [pod])
            elif ":" not in peer.ip_block.cidr:
                block = peer.ip_block
                yield _Place(block.cidr, tuple(block.excepted), [p for p in self._pods if _is_in(p, block)])

    def _selected(self, peer: Peer, namespace: str) -> Iterator[Pod]:
        for pod in self._pods:
            if peer.namespace_selector is None:
                is_near = pod.metadata.namespace == namespace
            else:
                labels = self._namespace_labels.get(pod.metadata.namespace)
                is_near = labels is not None and peer.namespace_selector.selects(labels)
            if is_near and (peer.pod_selector is None or peer.pod_selector.selects(pod.metadata.labels)):
                yield pod


def _ingress(pod: Pod, policies: Sequence[NetworkPolicy], peers: _Peers) -> Iterator[Allowed]:
    """A named port is the pod's own."""
    for policy in policies:
        for rule in policy.spec.ingress:
            for place in peers.places(rule.peers, policy.metadata.namespace):
                if not rule.ports:
                    yield Allowed(place.network, place.excepted)
                for port in rule.ports:
                    for first, last in _numbers(port, pod):
                        yield Allowed(place.network, place.excepted, port.protocol, first, last)


def _egress(policies: Sequence[NetworkPolicy], peers: _Peers) -> Iterator[Allowed]:
    """A named port is that of the pod at the other end, so that one name may stand for many numbers."""
    for policy in policies:
        for rule in policy.spec.egress:
            for place in peers.places(rule.peers, policy.metadata.namespace):
                if not rule.ports:
                    yield Allowed(place.network, place.excepted)
                for port in rule.ports:
                    if isinstance(port.port, str):
                        for other in place.pods:
                            for first, last in _numbers(port, other):
                                yield Allowed(f"{other.status.pod_ip}/32", (), port.protocol, first, last)
                    else:
                        for first, last in _numbers(port, None):
                            yield Allowed(place.network, place.excepted, port.protocol, first, last)


def _numbers(port: PolicyPort, pod: Pod | None) -> Iterator[tuple[int, int]]:
    """First and last number, 0 for every port; a name is looked up in `pod`."""
    if port.port is None:
        yield 0, 0
    elif isinstance(port.port, int):
        yield port.port, port.end_port or port.port
    elif pod is not None:
        sidecars = [
            container for container in pod.spec.init_containers if container.restart_policy == "Always"
        ]
        for container in (*pod.spec.containers, *sidecars):
            for named in container.ports:
                if named.name == port.port and named.protocol == port.protocol:
                    yield named.container_port, named.container_port


def _is_met(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case _:  # DoesNotExist; the API server takes no other
            return value is None


def _is_in(pod: Pod, block: IpBlock) -> bool:
    address = IPv4Address(pod.status.pod_ip)
    return address in ip_network(block.cidr, strict=False) and not any(
        address in ip_network(excepted, strict=False) for excepted in block.excepted
    )


def _ordered(found: Iterable[Allowed]) -> tuple[Allowed, ...]:
    return tuple(sorted(set(found)))
