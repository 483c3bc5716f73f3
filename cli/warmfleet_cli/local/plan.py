"""Plans the processes of a local fleet from a manifest; starts nothing."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import LOCAL_HOST
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec, ZeroRule
from warmfleet_contracts.resources.fields import Resource
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_contracts.resources.worker_flags import extra_flags, unsupported_engine_fields, worker_flags

MAX_LOCAL_WORKERS: Final = 64
MAX_LOCAL_ROUTERS: Final = 8
MAX_WAIT_SECONDS: Final = 60.0
"""Longest wait of a request in a local router. Longer than in a cluster: a local burst comes from one user,
for whom waiting is better than a 429."""
_CLUSTER_ONLY: Final = (
    "model.cache",
    "engine.image",
    "rollout.maxSurge",
    "rollout.maxUnavailable",
    "accelerator",
    "resources",
    "nodeSelector",
    "tolerations",
    "affinity",
    "priorityClassName",
    "imagePullSecrets",
    "podTemplate",
)


class ProcessPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its command line and its address. Holds no secret."""

    name: str
    role: Literal["worker", "router"]
    argv: tuple[str, ...]
    port: int
    uid: str = ""
    """Identity that a worker proves to routers. A restart keeps it and begins a new epoch."""
    environment: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://{LOCAL_HOST}:{self.port}"


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The processes of a local fleet and its timeouts; `supervise` runs it."""

    name: str
    served_names: tuple[str, ...]
    workers: tuple[ProcessPlan, ...]
    """Those that are started first."""
    spare_workers: tuple[ProcessPlan, ...] = ()
    """Those that autoscaling may start besides."""
    routers: tuple[ProcessPlan, ...]
    shared_cache: str = ""
    """The deployment's name if all its callers share one cache; empty: each tenant has its own."""
    startup_timeout_seconds: float
    drain_timeout_seconds: float
    autoscaling: dict[str, Any] | None = None
    """`spec.autoscaling` of the manifest; where the fleet scales itself, with this machine's bounds."""
    scales: bool = False
    """Whether the fleet scales itself."""
    worker_bytes: int = 0
    """Memory of one worker, at most; 0: not known."""
    hold_seconds: float | None = None
    """How long routers hold requests while it sleeps, without a worker; None: it does not sleep."""

    @property
    def all_workers(self) -> tuple[ProcessPlan, ...]:
        return self.workers + self.spare_workers

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        return self.all_workers + self.routers

    @property
    def asks_for_keys(self) -> bool:
        return any("--keys-file" in router.argv for router in self.routers)

    @property
    def urls(self) -> list[str]:
        return [router.url for router in self.routers]


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the command line adds to the manifest."""

    replicas: int | None = None
    routers: int = 1
    router_port: int = 8080
    worker_port: int = 8100
    keys_path: Path | None = None
    """File of the API keys that routers require; None: every client on this machine is served."""


@dataclass(frozen=True, slots=True)
class LocalScaling:
    """How a fleet that scales itself does so on this machine."""

    spec: AutoscalingSpec
    worker_bytes: int
    """Memory of one worker, at most."""


def worker_count(
    deployment: ModelDeployment, options: LocalOptions, scaling: LocalScaling | None = None
) -> int:
    """Workers to start first: the command line's number, or the manifest's; within the bounds of `scaling`.

    A fleet that may sleep begins asleep with 0.

    Raises:
        ManifestError: without `scaling`, fewer than 1 or more than `MAX_LOCAL_WORKERS`.
    """
    count = deployment.spec.replicas if options.replicas is None else options.replicas
    field = "spec.replicas" if options.replicas is None else "--replicas"
    if scaling is not None:
        return max(scaling.spec.min_replicas, min(count, scaling.spec.max_replicas))
    if not 1 <= count <= MAX_LOCAL_WORKERS:
        raise ManifestError(f"{field}: is {count}; a local fleet has 1 to {MAX_LOCAL_WORKERS} workers")
    return count


def require_local_support(
    deployment: ModelDeployment, *, origin: str, has_keys: bool = False, scales: bool = False
) -> list[str]:
    """Notices about fields that only a cluster acts on.

    Raises:
        ManifestError: a field that changes answers or memory is not supported on one machine.
    """
    spec = deployment.spec
    source = spec.model.source
    refused = {
        "spec.suspend: true asks for no workers; remove it to start the fleet": spec.suspend,
        "spec.model.source.image: images need a cluster; use catalog or localPath": source.image is not None,
        "spec.model.source.persistentVolumeClaim: claims need a cluster; "
        "use catalog or localPath": source.persistent_volume_claim is not None,
        "spec.kvCache.deviceMemoryPercent: local workers share this machine's memory; use size": (
            spec.kv_cache.device_memory_percent is not None
        ),
    }
    for text, applies in refused.items():
        if applies:
            raise ManifestError(f"{origin}: {text}")
    for field, text in unsupported_engine_fields(spec):
        raise ManifestError(f"{origin}: {field}: {text}")
    for variable in spec.engine.env:
        if variable.value_from is not None:
            raise ManifestError(
                f"{origin}: spec.engine.env: {variable.name}: valueFrom needs a cluster; use value"
            )
    return list(_notices(deployment, has_keys=has_keys, scales=scales))


def _notices(deployment: ModelDeployment, *, has_keys: bool, scales: bool) -> Iterable[str]:
    spec = deployment.spec
    ignored = [field for field in _CLUSTER_ONLY if _is_given(spec, field.split("."))]
    if ignored:
        yield f"only a cluster acts on {', '.join(f'spec.{field}' for field in ignored)}"
    if spec.autoscaling is not None and not scales:
        yield "spec.autoscaling: --autoscale acts on it; without, `warmfleet top` shows the wanted number"
    hub = spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        yield "spec.model.source.huggingFace.tokenSecretRef needs a cluster; here the token is $HF_TOKEN"
    if not has_keys and "sharing" in spec.kv_cache.model_fields_set:
        yield "spec.kvCache.sharing: without --keys-file all callers are one tenant"
    if deployment.metadata.namespace is not None:
        yield "metadata.namespace means nothing to a local fleet"


def _is_given(resource: Resource, path: Sequence[str]) -> bool:
    for name, info in type(resource).model_fields.items():
        if info.alias == path[0] and name in resource.model_fields_set:
            value = getattr(resource, name)
            return len(path) == 1 or (isinstance(value, Resource) and _is_given(value, path[1:]))
    return False


def plan_fleet(
    deployment: ModelDeployment,
    options: LocalOptions,
    *,
    model_path: Path,
    endpoints_path: Path,
    cores: int,
    fleet_uid: str,
    scaling: LocalScaling | None = None,
) -> FleetPlan:
    """The processes of this deployment on one machine.

    Args:
        deployment: accepted by `require_local_support`.
        options: from the command line.
        model_path: the model's folder.
        endpoints_path: file with the list of workers, which routers read.
        cores: CPU cores to share among the workers.
        fleet_uid: makes worker uids different from those of any other start.
        scaling: of a fleet that scales itself.

    Raises:
        ManifestError: as `worker_count`.
        CliError: two processes would listen on one port.
    """
    name = deployment.metadata.name
    autoscaling = scaling.spec if scaling is not None else deployment.spec.autoscaling
    count = worker_count(deployment, options, scaling)
    most = scaling.spec.max_replicas if scaling is not None else count
    # Of the largest fleet: a worker is the same at any number of them, and what is learnt of one stays true.
    threads = max(1, cores // most)
    workers = tuple(
        _plan_worker(
            deployment,
            name=f"{name}-{i}",
            port=options.worker_port + i,
            uid=f"{name}-{i}-{fleet_uid}",
            model_path=model_path,
            threads=threads,
        )
        for i in range(most)
    )
    routers = tuple(
        _plan_router(
            deployment, f"{name}-router-{i}", options.router_port + i, endpoints_path, options.keys_path
        )
        for i in range(options.routers)
    )
    taken: dict[int, str] = {}
    for process in workers + routers:
        if process.port in taken:
            raise CliError(
                f"port {process.port} would serve both {taken[process.port]} and {process.name}",
                advice="move one range with --port or --worker-port",
                exit_code=ExitCode.PORT_BUSY,
            )
        taken[process.port] = process.name
    return FleetPlan(
        name=name,
        served_names=deployment.served_names,
        workers=workers[:count],
        spare_workers=workers[count:],
        routers=routers,
        shared_cache=name if deployment.spec.kv_cache.sharing == "Deployment" else "",
        startup_timeout_seconds=float(deployment.spec.rollout.startup_timeout_seconds),
        drain_timeout_seconds=float(deployment.spec.rollout.drain_timeout_seconds),
        autoscaling=None if autoscaling is None else autoscaling.model_dump(by_alias=True, exclude_none=True),
        scales=scaling is not None,
        worker_bytes=scaling.worker_bytes if scaling is not None else 0,
        hold_seconds=_hold_seconds(scaling),
    )


def _hold_seconds(scaling: LocalScaling | None) -> float | None:
    """As routers in a cluster read it from the ModelDeployment (`router/discovery/resources`)."""
    if scaling is None or scaling.spec.min_replicas > 0:
        return None
    return float((scaling.spec.zero or ZeroRule()).hold_seconds)


def _plan_worker(
    deployment: ModelDeployment, *, name: str, port: int, uid: str, model_path: Path, threads: int
) -> ProcessPlan:
    flags = worker_flags(
        deployment, model_path=str(model_path), host=LOCAL_HOST, port=port, uid=uid, threads=threads
    )
    return ProcessPlan(
        name=name,
        role="worker",
        argv=(sys.executable, "-m", "warmfleet_worker", *flags, *extra_flags(deployment.spec.engine)),
        port=port,
        uid=uid,
        environment={variable.name: variable.value or "" for variable in deployment.spec.engine.env},
    )


def _plan_router(
    deployment: ModelDeployment, name: str, port: int, endpoints_path: Path, keys_path: Path | None
) -> ProcessPlan:
    flags = {
        "--host": LOCAL_HOST,
        "--port": str(port),
        "--endpoints-file": str(endpoints_path),
        "--policy": deployment.spec.routing.policy,
        "--router-id": name,
        "--max-wait-seconds": f"{MAX_WAIT_SECONDS:g}",
        "--drain-seconds": str(deployment.spec.rollout.drain_timeout_seconds),
    }
    if keys_path is not None:
        flags["--keys-file"] = str(keys_path)
    argv = [sys.executable, "-m", "warmfleet_router", *(part for flag in flags.items() for part in flag)]
    return ProcessPlan(name=name, role="router", argv=tuple(argv), port=port)
