"""The Service that publishes workers' addresses, and the NetworkPolicies that restrict their connections."""

from typing import Any, Final
from urllib.parse import urlsplit

from warmfleet_contracts.names import (
    HTTP_PORT_NAME,
    MODEL_FETCH_COMPONENT,
    WORKER_PORT,
)
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.metadata import (
    Manifest,
    child,
    fetch_policy_name,
    fetching_label,
    selector,
)
from warmfleet_operator.desired.model import cache_claim, pods_fetch
from warmfleet_operator.settings import OperatorSettings

_HTTPS_PORT: Final = 443
_HTTP_PORT: Final = 80

_ANYWHERE: Final[list[dict[str, Any]]] = [
    # Pods included: a mirror or a proxy may run in this cluster. The cloud's metadata service is excluded.
    {"namespaceSelector": {}},
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fd00:ec2::254/128", "fe80::/10"]}},
]


def worker_service(deployment: CheckedDeployment) -> Manifest:
    """Headless: routers read its EndpointSlices and choose a pod."""
    port = {"name": HTTP_PORT_NAME, "port": WORKER_PORT, "protocol": "TCP", "targetPort": HTTP_PORT_NAME}
    return child(
        deployment,
        "v1",
        "Service",
        spec={"clusterIP": "None", "ports": [port], "selector": selector(deployment.name)},
    )


def network_policies(deployment: CheckedDeployment, settings: OperatorSettings) -> list[Manifest]:
    """The policies of workers and of the pods that fetch; none if they are disabled.

    A policy selects whole pods. A worker that fetches its model itself is selected by the second policy while
    it carries the label of fetching pods, which the operator removes once the fetch has succeeded.
    """
    if not settings.network_policies_enabled:
        return []
    workers = child(
        deployment,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        spec={
            "podSelector": {"matchLabels": selector(deployment.name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [_from_routers(settings), *_from_scrapers(settings)],
            "egress": [_dns(settings)],
        },
    )
    if cache_claim(deployment):
        fetching = selector(deployment.name, MODEL_FETCH_COMPONENT)
    elif pods_fetch(deployment):
        fetching = {**selector(deployment.name), **fetching_label()}
    else:
        return [workers]
    fetch = child(
        deployment,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        fetch_policy_name(deployment),
        MODEL_FETCH_COMPONENT,
        spec={
            "podSelector": {"matchLabels": fetching},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [_dns(settings)] if settings.hub_offline else [_dns(settings), _hub(settings)],
        },
    )
    return [workers, fetch]


def _from_routers(settings: OperatorSettings) -> Manifest:
    return {
        "from": [
            {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": settings.release_namespace}
                },
                "podSelector": {"matchLabels": dict(settings.router_pod_labels)},
            }
        ],
        "ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}],
    }


def _from_scrapers(settings: OperatorSettings) -> list[Manifest]:
    """Metrics share the workers' port; every other endpoint on it requires a token."""
    if settings.worker_scrapers is None:
        return []
    rule: Manifest = {"ports": [{"port": HTTP_PORT_NAME, "protocol": "TCP"}]}
    return [{"from": list(settings.worker_scrapers), **rule} if settings.worker_scrapers else rule]


def _dns(settings: OperatorSettings) -> Manifest:
    rule: Manifest = {
        "ports": [
            {"port": port, "protocol": protocol} for port in settings.dns_ports for protocol in ("UDP", "TCP")
        ]
    }
    return {"to": list(settings.dns_peers), **rule} if settings.dns_peers else rule


def _hub(settings: OperatorSettings) -> Manifest:
    urls = (settings.hub_endpoint, settings.http_proxy, settings.https_proxy)
    ports = {_HTTPS_PORT, *(_port(url) for url in urls if url)}
    return {"to": list(_ANYWHERE), "ports": [{"port": port, "protocol": "TCP"} for port in sorted(ports)]}


def _port(url: str) -> int:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:  # the client of that address reports the error
        port = None
    return port or (_HTTPS_PORT if parts.scheme == "https" else _HTTP_PORT)
