"""Which addresses stand behind a Service port, from Services and EndpointSlices. Pure.

Follows kube-proxy: ready endpoints; if none is ready, those that still serve while they terminate.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SERVICE_NAME_LABEL = "kubernetes.io/service-name"

Json = Mapping[str, Any]
ServiceKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True, order=True)
class Frontend:
    """One port of one ClusterIP, and the pods behind it."""

    address: str
    protocol: str
    """TCP or UDP."""
    port: int
    backends: tuple[tuple[str, int], ...]
    """Address and port of each; none means that connections are refused."""


def key_of(item: Json) -> ServiceKey:
    """Namespace and name of any namespaced object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def cluster_ip(service: Json) -> str | None:
    """Its IPv4 address; None for headless and external Services."""
    address = service.get("spec", {}).get("clusterIP", "")
    return address if address and address != "None" and ":" not in address else None


def slices_by_service(slices: Iterable[Json]) -> dict[ServiceKey, list[Json]]:
    """IPv4 slices, each under the Service it belongs to."""
    found: dict[ServiceKey, list[Json]] = defaultdict(list)
    for item in slices:
        owner = item["metadata"].get("labels", {}).get(SERVICE_NAME_LABEL)
        if owner and item.get("addressType") == "IPv4":
            found[item["metadata"].get("namespace", ""), owner].append(item)
    return found


def frontends(services: Iterable[Json], slices: Iterable[Json]) -> tuple[Frontend, ...]:
    """Every port of every ClusterIP, in a fixed order."""
    by_service = slices_by_service(slices)
    found = []
    for service in services:
        address = cluster_ip(service)
        if address is None:
            continue
        own = by_service.get(key_of(service), [])
        for port in service["spec"].get("ports", ()):
            protocol = port.get("protocol", "TCP")
            if protocol in ("TCP", "UDP"):
                backends = _backends(own, port.get("name") or "", protocol)
                found.append(Frontend(address, protocol, port["port"], backends))
    return tuple(sorted(found))


def ready_endpoints(slices: Iterable[Json]) -> list[Json]:
    """Endpoints that new connections may go to, of all slices of one Service."""
    every = [endpoint for item in slices for endpoint in item.get("endpoints") or ()]
    # An absent condition counts as true.
    ready = [e for e in every if e.get("conditions", {}).get("ready") is not False]
    if ready:
        return ready
    return [
        e
        for e in every
        if e.get("conditions", {}).get("serving") is not False and e.get("conditions", {}).get("terminating")
    ]


def _backends(slices: Iterable[Json], port_name: str, protocol: str) -> tuple[tuple[str, int], ...]:
    """Port numbers stand in the slice: a named targetPort may differ from pod to pod."""
    own = list(slices)
    chosen = {id(endpoint) for endpoint in ready_endpoints(own)}
    return tuple(
        sorted(
            {
                (endpoint["addresses"][0], port["port"])
                for item in own
                for port in item.get("ports") or ()
                if (port.get("name") or "") == port_name
                and port.get("protocol", "TCP") == protocol
                and port.get("port") is not None
                for endpoint in item.get("endpoints") or ()
                if id(endpoint) in chosen and endpoint.get("addresses")
            }
        )
    )
