"""From a cluster's objects to endpoints: a pure function, the same in every router.

A pod is an endpoint as long as a slice names it, also while the slice has it as not ready: a worker reports
on its event stream when it has loaded its model, and `draining` when it terminates, before slices show it. A
pod that no slice names is no endpoint.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from warmfleet_contracts.cache.worker_tokens import namespace_key, worker_token
from warmfleet_contracts.names import HTTP_PORT_NAME
from warmfleet_contracts.resources.ownership import Claim, claimed_since, owned_names, owners
from warmfleet_router.discovery.base import MAX_ENDPOINTS, Discovered, Endpoint
from warmfleet_router.discovery.resources import EndpointSliceObject, ModelDeploymentObject, SliceEndpoint

_SHARED_BY_ALL = "Deployment"


class _Pod(NamedTuple):
    """A pod as a slice names it. Its order decides which of several entries counts."""

    created: str
    deployment_uid: str
    address_type: str
    slice_name: str
    address: str
    port: int
    namespace: str
    name: str
    uid: str


def discovered_from(
    deployments: Iterable[ModelDeploymentObject], slices: Iterable[EndpointSliceObject], root: bytes
) -> Discovered:
    """What the cluster serves: its endpoints, and every name, also of models that have no pod now."""
    listed = list(deployments)
    claims = [_claim(deployment) for deployment in listed]
    owner = owners(claims)
    held = {found.metadata.uid: found.hold_seconds for found in listed}
    return Discovered(
        endpoints_from(listed, slices, root),
        frozenset(owner),
        {name: seconds for name, claim in owner.items() if (seconds := held.get(claim.uid)) is not None},
        {name: claim.qualified_name for name, claim in owner.items()},
    )


def endpoints_from(
    deployments: Iterable[ModelDeploymentObject], slices: Iterable[EndpointSliceObject], root: bytes
) -> tuple[Endpoint, ...]:
    """One endpoint for each pod that a slice of a known deployment names, sorted by deployment and pod.

    Never fails: what cannot be an endpoint is left out. A pod that is named several times
    (two address families, a slice that is being split) is one endpoint; of two deployments that name the same
    pod, the older has it. At most `MAX_ENDPOINTS`, of the oldest first.
    """
    by_key = {deployment.key: deployment for deployment in deployments}
    names = owned_names(owners(_claim(deployment) for deployment in by_key.values()))
    pods: dict[str, _Pod] = {}
    for pod in sorted(_pods(by_key, slices)):
        pods.setdefault(pod.uid, pod)
    kept = sorted(pods.values(), key=lambda pod: (pod.created, pod.deployment_uid, pod.name, pod.uid))
    keys = {namespace: namespace_key(root, namespace) for namespace, _ in by_key}
    deployment_of = {deployment.metadata.uid: deployment for deployment in by_key.values()}
    endpoints = [
        _endpoint(pod, deployment_of[pod.deployment_uid], names[pod.deployment_uid], keys[pod.namespace])
        for pod in kept[:MAX_ENDPOINTS]
    ]
    return tuple(sorted(endpoints, key=lambda endpoint: (endpoint.deployment, endpoint.name, endpoint.uid)))


def _claim(deployment: ModelDeploymentObject) -> Claim:
    metadata = deployment.metadata
    return Claim(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        created=metadata.creation_timestamp,
        served_names=deployment.served_names,
        since=claimed_since(
            deployment.served_names,
            deployment.recorded_claims,
            created=metadata.creation_timestamp,
            generation=metadata.generation,
        ),
    )


def _pods(
    deployments: dict[tuple[str, str], ModelDeploymentObject], slices: Iterable[EndpointSliceObject]
) -> Iterator[_Pod]:
    for found in slices:
        deployment = deployments.get(found.deployment_key)
        port = _http_port(found)
        if deployment is None or port is None:
            continue
        for endpoint in found.endpoints or ():
            target, address = endpoint.target_ref, _address(endpoint)
            if target is None or target.kind != "Pod" or not target.uid or not address:
                continue
            yield _Pod(
                created=deployment.metadata.creation_timestamp,
                deployment_uid=deployment.metadata.uid,
                address_type=found.address_type,
                slice_name=found.metadata.name,
                address=address,
                port=port,
                namespace=found.metadata.namespace,
                name=target.name,
                uid=target.uid,
            )


def _http_port(found: EndpointSliceObject) -> int | None:
    ports = (port.port for port in found.ports or () if port.name == HTTP_PORT_NAME)
    return next((port for port in ports if port is not None and 0 < port < 65536), None)


def _address(endpoint: SliceEndpoint) -> str:
    """The first address, as it stands in a URL; empty for a host name, which slices may hold, too."""
    try:
        address = ipaddress.ip_address(endpoint.addresses[0] if endpoint.addresses else "")
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return ""  # of one node's interface; nothing that another pod could reach
    return f"[{address}]" if address.version == 6 else str(address)


def _endpoint(pod: _Pod, deployment: ModelDeploymentObject, names: tuple[str, ...], key: bytes) -> Endpoint:
    qualified_name = "/".join(deployment.key)
    spec = deployment.spec
    return Endpoint(
        uid=pod.uid,
        name=pod.name or pod.uid,
        url=f"http://{pod.address}:{pod.port}",
        served_names=names,
        shared_cache=qualified_name if spec.kv_cache.sharing == _SHARED_BY_ALL else "",
        deployment=qualified_name,
        policy=spec.routing.policy,
        token=worker_token(key, pod.uid),
    )
