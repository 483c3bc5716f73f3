"""Settings of one operator process, from flags and from the environment of its pod."""

import argparse
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.names import (
    COMPONENT_LABEL,
    INSTANCE_LABEL,
    OPERATOR_HEALTH_PORT,
    OPERATOR_METRICS_PORT,
    POD_NAME_VARIABLE,
    POD_NAMESPACE_VARIABLE,
    ROUTER_COMPONENT,
    ROUTER_PORT,
)
from warmfleet_runtime.version import package_version

MAX_FLAG_JSON_BYTES: Final = 16 * 1024
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class SettingsError(WarmfleetError):
    """A flag or a variable is wrong; the text names it."""


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """One installation of the chart."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Times of leader election. A leader that could not renew stops writing before its lease expires."""

    name: str = "warmfleet-operator"
    duration_seconds: float = 15.0
    """Other replicas wait this long without a renewal before they acquire the lease."""
    renew_seconds: float = 10.0
    """A leader may write for this long after its last renewal."""
    retry_seconds: float = 2.0
    """Between two attempts to renew or to acquire."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """All settings of one operator process."""

    release_namespace: str
    """Namespace of the operator, the routers, the root keys and the lease."""
    release_name: str = "warmfleet"
    adopted_releases: tuple[Release, ...] = ()
    """Releases whose objects this one takes over: they were uninstalled, or hand over."""
    watched_namespaces: tuple[str, ...] = ()
    """Namespaces whose ModelDeployments are served; empty = all namespaces."""
    kubeconfig: Path | None = None
    """None = the pod's service account."""
    identity: str = "operator"
    """This process among its replicas."""
    version: str = "0+unknown"

    worker_cpu_image: str = ""
    worker_cuda_image: str = ""
    """For deployments with an accelerator."""
    worker_vllm_image: str = ""
    """For deployments whose engine is vLLM; empty = they name an image themselves."""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    default_resources: Mapping[str, Any] = field(default_factory=dict)
    """ResourceRequirements of an engine whose deployment names none."""

    root_secret_name: str = "warmfleet-root-keys"  # noqa: S105 - a Secret's name
    create_root_secret: bool = True
    """False: the Secret is provided by other means."""
    router_service_name: str = "warmfleet-router"
    router_service_port: int = 80
    router_port: int = ROUTER_PORT
    """Port of a router's pod."""
    router_pod_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that select router pods in the release namespace."""

    hub_endpoint: str = ""
    """Base URL of the model hub; empty = the public one."""
    hub_offline: bool = False
    """True: nothing is fetched; a model that is not cached is refused."""
    resolve_revisions: bool = True
    """False: the operator sends no request to the hub; a model at a branch or tag is refused."""
    hub_ca_file: Path | None = None
    """Certificates that the operator trusts for the hub, if the file exists; None = the image's."""
    http_proxy: str = ""
    https_proxy: str = ""
    no_proxy: str = ""
    ca_bundle_config_map: str = ""
    """ConfigMap with `ca.crt` in each model namespace, trusted by model fetches; empty = the image's."""
    network_policies_enabled: bool = True
    worker_scrapers: tuple[Mapping[str, Any], ...] | None = None
    """NetworkPolicyPeers that may read workers' metrics; an empty tuple = any peer, None = no peer."""
    dns_ports: tuple[int, ...] = (53,)
    dns_peers: tuple[Mapping[str, Any], ...] = ()
    """NetworkPolicyPeers that workers may ask for names, on `dns_ports`; empty = any address."""

    lease: LeaseSettings = field(default_factory=LeaseSettings)
    resync_seconds: float = 60.0
    """Every deployment is reconciled at least this often."""
    sync_seconds: float = 60.0
    """The store is compared with lists this often; a watch that stays behind fails the liveness probe."""
    router_poll_seconds: float = 10.0
    scaling_seconds: float = 2.0
    """Routers are asked for totals, and the number of replicas is decided, this often."""
    no_room_seconds: float = 120.0
    """A pod without a node for longer than this stalls its deployment."""
    workers: int = 4
    """Deployments reconciled at once."""
    host: str = "0.0.0.0"  # noqa: S104 - kubelet and Prometheus connect from outside the pod
    health_port: int = OPERATOR_HEALTH_PORT
    metrics_port: int = OPERATOR_METRICS_PORT
    """0 lets the system choose; log lines on stdout name the port."""
    log_level: str = "info"

    @property
    def release(self) -> Release:
        """The one that this operator belongs to."""
        return Release(self.release_namespace, self.release_name)

    @property
    def own_releases(self) -> frozenset[Release]:
        """Those whose objects this operator may write."""
        return frozenset({self.release, *self.adopted_releases})

    @property
    def router_url(self) -> str:
        """The routers' Service, as pods of this cluster reach it."""
        port = "" if self.router_service_port == 80 else f":{self.router_service_port}"
        return f"http://{self.router_service_name}.{self.release_namespace}.svc{port}"


def parse_settings(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> OperatorSettings:
    """Settings from the command line; exits with a usage error on a wrong flag."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _settings(given, environment)
    except SettingsError as error:
        parser.error(str(error))


def _settings(given: argparse.Namespace, environment: Mapping[str, str]) -> OperatorSettings:
    namespace = given.release_namespace or environment.get(POD_NAMESPACE_VARIABLE, "")
    if not namespace:
        raise SettingsError(f"--release-namespace: missing, and ${POD_NAMESPACE_VARIABLE} is not set")
    for flag, names in (
        ("--release-namespace", [namespace]),
        ("--release-name", [given.release_name]),
        ("--namespace", given.namespace),
        ("--image-pull-secret", given.image_pull_secret),
        ("--root-secret-name", [given.root_secret_name or "warmfleet-root-keys"]),
    ):
        for name in names:
            if _OBJECT_NAME.fullmatch(name) is None:
                raise SettingsError(f"{flag}: {name[:64]!r} is not a name of an object")
    labels = _object("--router-pod-labels", given.router_pod_labels)
    if not all(isinstance(value, str) for value in labels.values()):
        raise SettingsError("--router-pod-labels: expected texts as values")
    release = given.release_name
    return OperatorSettings(
        release_namespace=namespace,
        release_name=release,
        adopted_releases=tuple(_release("--adopt-release", text) for text in given.adopt_release),
        watched_namespaces=tuple(dict.fromkeys(given.namespace)),
        kubeconfig=given.kubeconfig,
        identity=environment.get(POD_NAME_VARIABLE) or f"{socket.gethostname()}-{os.getpid()}",
        version=package_version(),
        worker_cpu_image=given.worker_cpu_image,
        worker_cuda_image=given.worker_cuda_image,
        worker_vllm_image=given.worker_vllm_image,
        image_pull_policy=given.image_pull_policy,
        image_pull_secrets=tuple(given.image_pull_secret),
        default_resources=_object("--default-resources", given.default_resources),
        root_secret_name=given.root_secret_name or f"{release}-root-keys",
        create_root_secret=not given.no_create_root_secret,
        router_service_name=given.router_service_name or f"{release}-router",
        router_service_port=given.router_service_port,
        router_port=given.router_port,
        router_pod_labels=labels or {COMPONENT_LABEL: ROUTER_COMPONENT, INSTANCE_LABEL: release},
        hub_endpoint=given.hub_endpoint,
        hub_offline=given.hub_offline,
        resolve_revisions=not given.no_resolve_revisions,
        hub_ca_file=given.hub_ca_file,
        http_proxy=given.http_proxy,
        https_proxy=given.https_proxy,
        no_proxy=given.no_proxy,
        ca_bundle_config_map=given.ca_bundle_config_map,
        network_policies_enabled=not given.no_network_policies,
        worker_scrapers=_peers("--worker-scrapers", given.worker_scrapers),
        dns_ports=_ports("--dns-port", given.dns_port),
        dns_peers=_peers("--dns-peers", given.dns_peers) or (),
        lease=_lease(given, release),
        resync_seconds=_positive("--resync-seconds", given.resync_seconds),
        sync_seconds=_positive("--sync-seconds", given.sync_seconds),
        router_poll_seconds=_positive("--router-poll-seconds", given.router_poll_seconds),
        scaling_seconds=_positive("--scaling-seconds", given.scaling_seconds),
        no_room_seconds=_positive("--no-room-seconds", given.no_room_seconds),
        workers=int(_positive("--workers", given.workers)),
        host=given.host,
        health_port=given.health_port,
        metrics_port=given.metrics_port,
        log_level=given.log_level,
    )


def _release(flag: str, text: str) -> Release:
    namespace, _, name = text.partition("/")
    if not (_OBJECT_NAME.fullmatch(namespace) and _OBJECT_NAME.fullmatch(name)):
        raise SettingsError(f"{flag}: expected NAMESPACE/NAME, got {text[:64]!r}")
    return Release(namespace, name)


def _lease(given: argparse.Namespace, release: str) -> LeaseSettings:
    lease = LeaseSettings(
        name=given.lease_name or f"{release}-operator",
        duration_seconds=given.lease_duration_seconds,
        renew_seconds=given.lease_renew_seconds,
        retry_seconds=given.lease_retry_seconds,
    )
    if not 0 < lease.retry_seconds < lease.renew_seconds < lease.duration_seconds < float("inf"):
        raise SettingsError(
            "--lease-retry-seconds < --lease-renew-seconds < --lease-duration-seconds must hold; given: "
            f"{lease.retry_seconds}, {lease.renew_seconds}, {lease.duration_seconds}"
        )
    return lease


def _positive(flag: str, number: float) -> float:
    if not 0 < number < float("inf"):
        raise SettingsError(f"{flag}: expected more than 0, got {number}")
    return number


def _object(flag: str, text: str) -> Mapping[str, Any]:
    """A JSON object from a flag; empty if the flag is not given."""
    value = _json(flag, text or "{}")
    if not isinstance(value, dict):
        raise SettingsError(f"{flag}: expected a JSON object, got {text[:64]!r}")
    return value


def _peers(flag: str, text: str) -> tuple[Mapping[str, Any], ...] | None:
    """A JSON list of objects from a flag; None if the flag is not given."""
    if not text:
        return None
    value = _json(flag, text)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SettingsError(f"{flag}: expected a JSON list of objects, got {text[:64]!r}")
    return tuple(value)


def _ports(flag: str, ports: Sequence[int]) -> tuple[int, ...]:
    """Each port once; 53 if none is given."""
    for port in ports:
        if not 0 < port < 65536:
            raise SettingsError(f"{flag}: expected 1..65535, got {port}")
    return tuple(dict.fromkeys(ports)) or (53,)


def _json(flag: str, text: str) -> object:
    if len(text) > MAX_FLAG_JSON_BYTES:
        raise SettingsError(f"{flag}: longer than {MAX_FLAG_JSON_BYTES} bytes")
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{flag}: not JSON: {error}") from error
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m warmfleet_operator",
        description="Reconcile ModelDeployments into workers.",
        epilog=f"${POD_NAME_VARIABLE} names this replica, ${POD_NAMESPACE_VARIABLE} its namespace.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    lease = LeaseSettings()
    of_release = "; empty: derived from the release's name"
    add("--release-namespace", default="", help="namespace of operator and routers; default: the pod's")
    add("--release-name", default="warmfleet", help="name of the release")
    adopted = "NAMESPACE/NAME of a release whose objects this one takes over (repeatable)"
    add("--adopt-release", action="append", default=[], metavar="RELEASE", help=adopted)
    watched = "namespace with ModelDeployments (repeatable); not given: all namespaces"
    add("--namespace", action="append", default=[], help=watched)
    add("--kubeconfig", type=Path, help="how to reach the API server from outside a pod")
    add("--worker-cpu-image", default="", help="image of workers without an accelerator")
    add("--worker-cuda-image", default="", help="image of workers with one")
    add("--worker-vllm-image", default="", help="image of workers with vLLM, which needs an accelerator")
    add("--image-pull-policy", choices=_PULL_POLICIES, default="IfNotPresent", help="of worker images")
    add("--image-pull-secret", action="append", default=[], help="in each model namespace (repeatable)")
    add("--default-resources", default="", metavar="JSON", help="ResourceRequirements where none are given")
    add("--root-secret-name", default="", help=f"Secret of the release's root keys{of_release}")
    add("--no-create-root-secret", action="store_true", help="never create the Secret of the root keys")
    add("--router-service-name", default="", help=f"Service of the routers{of_release}")
    add("--router-service-port", type=int, default=80, help="port of that Service")
    add("--router-port", type=int, default=ROUTER_PORT, help="port of a router's pod")
    add("--router-pod-labels", default="", metavar="JSON", help=f"labels of router pods{of_release}")
    _add_hub_flags(parser)
    add("--no-network-policies", action="store_true", help="make no NetworkPolicy per deployment")
    scrapers = "NetworkPolicyPeers that may read workers' metrics; []: any peer; not given: none"
    add("--worker-scrapers", default="", metavar="JSON", help=scrapers)
    add(
        "--dns-port",
        type=int,
        action="append",
        default=[],
        help="of the cluster's DNS (repeatable); default: 53",
    )
    resolvers = "NetworkPolicyPeers that workers ask for names; not given: any address"
    add("--dns-peers", default="", metavar="JSON", help=resolvers)
    add("--lease-name", default="", help=f"Lease of the leader election{of_release}")
    add(
        "--lease-duration-seconds",
        type=float,
        default=lease.duration_seconds,
        help="without a renewal, another replica takes over after this",
    )
    add("--lease-renew-seconds", type=float, default=lease.renew_seconds, help="writing stops after this")
    add("--lease-retry-seconds", type=float, default=lease.retry_seconds, help="between two attempts")
    add("--resync-seconds", type=float, default=60.0, help="every deployment is reconciled this often")
    add("--sync-seconds", type=float, default=60.0, help="watches are compared with lists this often")
    add("--router-poll-seconds", type=float, default=10.0, help="routers are polled this often")
    add("--scaling-seconds", type=float, default=2.0, help="numbers of replicas are decided this often")
    add("--no-room-seconds", type=float, default=120.0, help="without a node for so long: stalled")
    add("--workers", type=int, default=4, help="deployments reconciled at once")
    add("--host", default="0.0.0.0", help="address of health and metrics")  # noqa: S104 - as above
    add("--health-port", type=int, default=OPERATOR_HEALTH_PORT, help="/livez, /readyz; 0: a free one")
    add("--metrics-port", type=int, default=OPERATOR_METRICS_PORT, help="/metrics; 0: a free one")
    add("--log-level", choices=_LOG_LEVELS, default="info", help="least level of log lines")
    return parser


def _add_hub_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--hub-endpoint", default="", help="base URL of the model hub; empty: the public one")
    add("--hub-offline", action="store_true", help="fetch nothing")
    add("--no-resolve-revisions", action="store_true", help="ask no hub: models are at commits alone")
    add("--hub-ca-file", type=Path, help="certificates for the operator's own requests to the hub")
    add("--http-proxy", default="", help="proxy of model fetches")
    add("--https-proxy", default="", help="proxy of model fetches")
    add("--no-proxy", default="", help="hosts that model fetches reach directly")
    add("--ca-bundle-config-map", default="", help="ConfigMap with ca.crt, trusted by model fetches")
