"""How a model gets into a worker pod: the volume it lies on, and the container that fetches it.

Catalog and hub models are fetched into `/models/<source key>`: by an init container on the pod's own
emptyDir, or by a Job on a claim that all replicas share. Images and claims that hold a model are mounted
there as they are.
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
from warmfleet_contracts.resources.model_fetch import (
    FETCH_MODULE,
    TERMINATION_MESSAGE_PATH,
    fetch_flags,
    model_folder,
)
from warmfleet_contracts.resources.quantities import format_bytes
from warmfleet_operator.desired.metadata import Manifest
from warmfleet_operator.desired.observed import ObservedDeployment
from warmfleet_operator.desired.pod_security import container_security_context
from warmfleet_operator.settings import OperatorSettings

TEMPORARY_PATH: Final = "/tmp"  # noqa: S108 - an emptyDir of the pod's own
_CA_BUNDLE_PATH: Final = "/etc/warmfleet/ca"
_FETCH_REQUESTS: Final = {"cpu": "100m", "memory": "256Mi"}


def worker_image(observed: ObservedDeployment, settings: OperatorSettings) -> str:
    """The deployment's own image, or the release's for its kind of device."""
    if observed.spec.engine.image:
        return observed.spec.engine.image
    return settings.worker_cuda_image if observed.spec.accelerator else settings.worker_cpu_image


def is_fetched(observed: ObservedDeployment) -> bool:
    """Whether files have to be brought; an image or a claim of the user's holds them already."""
    return bool(fetch_flags(observed.spec.model.source))


def cache_claim(observed: ObservedDeployment) -> str:
    """The claim that fetched files are kept on; empty = each pod keeps its own copy."""
    cache = observed.spec.model.cache
    if cache is None or cache.persistent_volume_claim is None or not is_fetched(observed):
        return ""
    return cache.persistent_volume_claim.claim_name


def model_volume(observed: ObservedDeployment) -> Manifest:
    """The volume that holds the model."""
    source, cache = observed.spec.model.source, observed.spec.model.cache
    if source.image is not None:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy}
        return {"name": MODEL_VOLUME, "image": image}
    if source.persistent_volume_claim is not None:
        claim = {"claimName": source.persistent_volume_claim.claim_name, "readOnly": True}
        return {"name": MODEL_VOLUME, "persistentVolumeClaim": claim}
    if claim_name := cache_claim(observed):
        return {"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": claim_name}}
    limit_bytes = cache.empty_dir.size_limit if cache is not None and cache.empty_dir is not None else None
    empty_dir = {} if limit_bytes is None else {"sizeLimit": format_bytes(limit_bytes)}
    return {"name": MODEL_VOLUME, "emptyDir": empty_dir}


def model_mount(observed: ObservedDeployment, *, writable: bool = False) -> Manifest:
    """Where a container sees that volume; only a fetch writes to it."""
    source = observed.spec.model.source
    if is_fetched(observed):
        mount: Manifest = {"name": MODEL_VOLUME, "mountPath": MODEL_MOUNT_PATH}
    else:
        mount = {"name": MODEL_VOLUME, "mountPath": model_folder(source)}
        if source.persistent_volume_claim is not None and source.persistent_volume_claim.sub_path:
            mount["subPath"] = source.persistent_volume_claim.sub_path
    return mount if writable else {**mount, "readOnly": True}


def temporary_volume() -> Manifest:
    """The one writable folder beside the model's: HOME, and /tmp."""
    return {"name": TEMPORARY_VOLUME, "emptyDir": {}}


def temporary_mount() -> Manifest:
    return {"name": TEMPORARY_VOLUME, "mountPath": TEMPORARY_PATH}


def init_containers(observed: ObservedDeployment, settings: OperatorSettings) -> list[Manifest]:
    """What runs before the engine: the fetch itself, or the wait for the Job that fetches."""
    if not is_fetched(observed):
        return []
    if cache_claim(observed):
        return [_container(observed, settings, ("--wait",), writable=False)]
    # The folder lives no longer than the pod, so a model of the pod's image may be linked to.
    return [fetch_container(observed, settings, "--link")]


def fetch_container(observed: ObservedDeployment, settings: OperatorSettings, *flags: str) -> Manifest:
    """The container that brings the files, with a way out to where they are."""
    offline = ("--offline",) if settings.hub_offline else ()
    container = _container(observed, settings, (*flags, *offline), writable=True)
    container["env"] += _way_out(observed, settings)
    if settings.ca_bundle_config_map:
        container["volumeMounts"].append(
            {"name": CA_BUNDLE_VOLUME, "mountPath": _CA_BUNDLE_PATH, "readOnly": True}
        )
    return container


def fetch_volumes(settings: OperatorSettings) -> list[Manifest]:
    """Volumes of a fetch beside the model's and /tmp."""
    if not settings.ca_bundle_config_map:
        return []
    return [{"name": CA_BUNDLE_VOLUME, "configMap": {"name": settings.ca_bundle_config_map}}]


def _container(
    observed: ObservedDeployment, settings: OperatorSettings, flags: tuple[str, ...], *, writable: bool
) -> Manifest:
    source = observed.spec.model.source
    timeout = str(observed.spec.rollout.startup_timeout_seconds)
    return {
        "name": MODEL_FETCH_CONTAINER,
        "image": worker_image(observed, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", FETCH_MODULE],
        "args": [
            *fetch_flags(source),
            *("--into", model_folder(source)),
            *("--timeout-seconds", timeout),
            *flags,
        ],
        "env": [{"name": "HOME", "value": TEMPORARY_PATH}],
        "resources": {"requests": dict(_FETCH_REQUESTS)},
        "securityContext": container_security_context(),
        "terminationMessagePath": TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [model_mount(observed, writable=writable), temporary_mount()],
    }


def _way_out(observed: ObservedDeployment, settings: OperatorSettings) -> list[dict[str, Any]]:
    """Environment by which the hub's clients, pip among them, find their way. The token stays in a Secret."""
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
    hub = observed.spec.model.source.hugging_face
    if hub is not None and hub.token_secret_ref is not None:
        reference = {"name": hub.token_secret_ref.name, "key": hub.token_secret_ref.key}
        variables.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": reference}})
    return variables
