"""The cluster's DNS records, from Services and EndpointSlices. Pure.

The schema is that of the Kubernetes DNS specification 1.1.0: A, SRV and CNAME records of Services, A records
of endpoints, and A records of pods by their address.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from warmfleet_devcluster.network.addresses import CLUSTER_DOMAIN
from warmfleet_devcluster.network.endpoints import (
    Json,
    cluster_ip,
    key_of,
    ready_endpoints,
    slices_by_service,
)


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one name."""

    addresses: tuple[str, ...] = ()
    alias: str = ""
    """Of an ExternalName Service."""
    services: tuple[tuple[int, str], ...] = ()
    """Port and target name of each SRV record."""


@dataclass(frozen=True, slots=True)
class Zone:
    """Every name of the cluster, lower case, without the final dot."""

    records: dict[str, Records] = field(default_factory=dict)
    parents: frozenset[str] = frozenset()
    """Names that hold no record but have names below them: they exist, empty."""

    def look_up(self, name: str) -> Records | None:
        """The records of `name`; None if there is no such name."""
        wanted = name.rstrip(".").lower()
        found = self.records.get(wanted)
        if found is not None:
            return found
        return Records() if wanted in self.parents else _pod_by_address(wanted)


def make_zone(services: Iterable[Json], slices: Iterable[Json]) -> Zone:
    """The cluster's names."""
    by_service = slices_by_service(slices)
    records: dict[str, Records] = {}
    for service in services:
        namespace, name = key_of(service)
        base = f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}".lower()
        spec = service.get("spec", {})
        if spec.get("type") == "ExternalName":
            records[base] = Records(alias=spec.get("externalName", ""))
            continue
        own = by_service.get((namespace, name), [])
        address = cluster_ip(service)
        if address is not None:
            records[base] = Records(addresses=(address,))
            for port in spec.get("ports", ()):
                if port.get("name"):
                    records[_port_name(port, base)] = Records(services=((port["port"], base),))
        else:
            records.update(_headless(base, own))
    return Zone(records, _parents(records))


def _headless(base: str, slices: list[Json]) -> dict[str, Records]:
    """Each endpoint has a name: its hostname, or its address with dashes."""
    addresses: set[str] = set()
    named: dict[str, set[str]] = defaultdict(set)
    ports: dict[str, set[tuple[int, str]]] = defaultdict(set)
    chosen = {id(endpoint) for endpoint in ready_endpoints(slices)}
    for item in slices:
        for endpoint in item.get("endpoints") or ():
            if id(endpoint) not in chosen:
                continue
            for address in endpoint.get("addresses", ()):
                addresses.add(address)
                name = f"{endpoint.get('hostname') or address.replace('.', '-')}.{base}".lower()
                named[name].add(address)
                for port in item.get("ports") or ():
                    if port.get("name") and port.get("port"):
                        ports[_port_name(port, base)].add((port["port"], name))
    return {
        base: Records(addresses=tuple(sorted(addresses))),
        **{name: Records(addresses=tuple(sorted(found))) for name, found in named.items()},
        **{name: Records(services=tuple(sorted(found))) for name, found in ports.items()},
    }


def _port_name(port: Json, base: str) -> str:
    return f"_{port['name']}._{port.get('protocol', 'TCP').lower()}.{base}"


def _pod_by_address(name: str) -> Records | None:
    """`10-244-0-7.default.pod.cluster.local`: the address in the name, as in every cluster."""
    labels = name.removesuffix(f".pod.{CLUSTER_DOMAIN}").split(".")
    if not name.endswith(f".pod.{CLUSTER_DOMAIN}") or len(labels) != 2:
        return None
    try:
        return Records(addresses=(str(ipaddress.IPv4Address(labels[0].replace("-", "."))),))
    except ValueError:
        return None


def _parents(records: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for name in records:
        labels = name.split(".")
        found |= {".".join(labels[i:]) for i in range(1, len(labels))}
    return frozenset(found)
