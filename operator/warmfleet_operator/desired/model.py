"""How a worker pod gets its model: the volume that holds it and the container that fetches it.

Catalog and hub models are fetched into `/models/<source key>`: by an init container on the pod's own
emptyDir, or by a Job on a claim that all replicas share. Images and claims that hold a model are mounted at
the same path.
"""

from typing import Any, Final

from warmfleet_contracts.names import (
    CA_BUNDLE_KEY,
    CA_BUNDLE_VOLUME,
    MODEL_FETCH_CONTAINER,
    MODEL_MOUNT_PATH,
    MODEL_VOLUME,
    TEMPORARY_VOLUME,
)
from warmfleet_contracts.resources.fetch_outcome import FETCH_MODULE, TERMINATION_MESSAGE_PATH
from warmfleet_contracts.resources.model_fetch import fetch_flags, model_folder
from warmfleet_contracts.resources.model_fetch import is_fetched as source_is_fetched
from warmfleet_contracts.resources.quantities import format_bytes
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.metadata import Manifest
from warmfleet_operator.desired.pod_security import container_security_context
from warmfleet_operator.settings import OperatorSettings

TEMPORARY_PATH: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
_CA_BUNDLE_PATH: Final = "/etc/warmfleet/ca"
_FETCH_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}


def worker_image(deployment: CheckedDeployment, settings: OperatorSettings) -> str:
    """The deployment's own image, or the release's for its kind of device."""
    if deployment.spec.engine.image:
        return deployment.spec.engine.image
    if deployment.spec.engine.type == "VLLM":
        return settings.worker_vllm_image
    return settings.worker_cuda_image if deployment.spec.accelerator else settings.worker_cpu_image


def is_fetched(deployment: CheckedDeployment) -> bool:
    """Whether the model is fetched; False if an image or a claim of the user holds it."""
    return source_is_fetched(deployment.spec.model.source)


def cache_claim(deployment: CheckedDeployment) -> str:
    """Name of the claim that holds fetched files; empty if each pod has its own copy."""
    cache = deployment.spec.model.cache
    if cache is None or cache.persistent_volume_claim is None or not is_fetched(deployment):
        return ""
    return cache.persistent_volume_claim.claim_name


def pods_fetch(deployment: CheckedDeployment) -> bool:
    """Whether each pod fetches the model for itself, and no Job for all of them."""
    return is_fetched(deployment) and not cache_claim(deployment)


def model_volume(deployment: CheckedDeployment) -> Manifest:
    """The volume that holds the model."""
    source, cache = deployment.spec.model.source, deployment.spec.model.cache
    if source.image is not None:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy}
        return {"name": MODEL_VOLUME, "image": image}
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        return {"name": MODEL_VOLUME, "persistentVolumeClaim": claim}
    if claim_name := cache_claim(deployment):
        return {"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": claim_name}}
    limit_bytes = cache.empty_dir.size_limit if cache is not None and cache.empty_dir is not None else None
    empty_dir = {} if limit_bytes is None else {"sizeLimit": format_bytes(limit_bytes)}
    return {"name": MODEL_VOLUME, "emptyDir": empty_dir}


def model_mount(deployment: CheckedDeployment, *, writable: bool = False) -> Manifest:
    """The mount of that volume; writable for a fetch only."""
    source = deployment.spec.model.source
    if is_fetched(deployment):
        mount: Manifest = {"name": MODEL_VOLUME, "mountPath": MODEL_MOUNT_PATH}
    else:
        mount = {"name": MODEL_VOLUME, "mountPath": model_folder(source)}
        if source.persistent_volume_claim is not None and source.persistent_volume_claim.sub_path:
            mount["subPath"] = source.persistent_volume_claim.sub_path
    return mount if writable else {**mount, "readOnly": True}


def temporary_volume() -> Manifest:
    """The only writable volume beside the model's: HOME and /tmp."""
    return {"name": TEMPORARY_VOLUME, "emptyDir": {}}


def temporary_mount() -> Manifest:
    return {"name": TEMPORARY_VOLUME, "mountPath": TEMPORARY_PATH}


def init_containers(deployment: CheckedDeployment, settings: OperatorSettings) -> list[Manifest]:
    """The container that runs before the engine: it fetches the model, or waits for the Job that does."""
    if not is_fetched(deployment):
        return []
    if cache_claim(deployment):
        return [_container(deployment, settings, ("--wait",), writable=False)]
    # The emptyDir is deleted with the pod, so it may link to a model in the pod's image.
    return [fetch_container(deployment, settings, "--link")]


def fetch_container(deployment: CheckedDeployment, settings: OperatorSettings, *flags: str) -> Manifest:
    """The container that fetches the files, with the environment for hub, proxies and CA bundle."""
    offline = ("--offline",) if settings.hub_offline else ()
    container = _container(deployment, settings, (*flags, *offline), writable=True)
    container["env"] += _hub_environment(deployment, settings)
    if settings.ca_bundle_config_map:
        container["volumeMounts"].append(
            {"name": CA_BUNDLE_VOLUME, "mountPath": _CA_BUNDLE_PATH, "readOnly": True}
        )
    return container


def fetch_volumes(settings: OperatorSettings) -> list[Manifest]:
    """Further volumes of a fetch: the CA bundle, if one is configured."""
    if not settings.ca_bundle_config_map:
        return []
    return [{"name": CA_BUNDLE_VOLUME, "configMap": {"name": settings.ca_bundle_config_map}}]


def _container(
    deployment: CheckedDeployment, settings: OperatorSettings, flags: tuple[str, ...], *, writable: bool
) -> Manifest:
    source = deployment.spec.model.source
    rollout = deployment.spec.rollout
    timeout: tuple[str, ...] = ()
    if rollout.differs("startup_timeout_seconds"):  # the fetch has the same default
        timeout = ("--timeout-seconds", str(rollout.startup_timeout_seconds))
    return {
        "name": MODEL_FETCH_CONTAINER,
        "image": worker_image(deployment, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", FETCH_MODULE],
        "args": [
            *fetch_flags(source),
            *("--into", model_folder(source)),
            *(("--any-architecture",) if deployment.spec.engine.type == "VLLM" else ()),
            *timeout,
            *flags,
        ],
        "env": [{"name": "HOME", "value": TEMPORARY_PATH}],
        "resources": {"requests": dict(_FETCH_REQUESTS)},
        "securityContext": container_security_context(),
        "terminationMessagePath": TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [model_mount(deployment, writable=writable), temporary_mount()],
    }


def _hub_environment(deployment: CheckedDeployment, settings: OperatorSettings) -> list[dict[str, Any]]:
    """Environment for the hub's clients and pip. The token comes from its Secret."""
    bundle = f"{_CA_BUNDLE_PATH}/{CA_BUNDLE_KEY}" if settings.ca_bundle_config_map else ""
    values = {
        "HF_ENDPOINT": settings.hub_endpoint,
        "HTTP_PROXY": settings.http_proxy,
        "HTTPS_PROXY": settings.https_proxy,
        "NO_PROXY": settings.no_proxy,
        "SSL_CERT_FILE": bundle,
        "PIP_CERT": bundle,
    }
    variables: list[dict[str, Any]] = [
        {"name": name, "value": value} for name, value in values.items() if value
    ]
    hub = deployment.spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables
