"""The Deployment of workers and its pod template."""

import math
from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.names import (
    ENGINE_CONTAINER,
    HTTP_PORT_NAME,
    NAMESPACE_KEY_VARIABLE,
    NAMESPACE_SECRET,
    NAMESPACE_SECRET_KEY,
    POD_UID_VARIABLE,
    SHARED_MEMORY_VOLUME,
    WORKER_PORT,
)
from warmfleet_contracts.resources.fetch_outcome import TERMINATION_MESSAGE_PATH
from warmfleet_contracts.resources.model_fetch import model_folder
from warmfleet_contracts.resources.quantities import format_bytes, parse_cores
from warmfleet_contracts.resources.worker_flags import extra_flags, worker_flags
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.memory_request import quantity, with_memory_request
from warmfleet_operator.desired.metadata import Manifest, child, fetching_label, labels, selector
from warmfleet_operator.desired.model import (
    TEMPORARY_PATH,
    fetch_volumes,
    init_containers,
    model_mount,
    model_volume,
    pods_fetch,
    temporary_mount,
    temporary_volume,
    worker_image,
)
from warmfleet_operator.desired.overlay import merge
from warmfleet_operator.desired.pod_security import container_security_context, pod_security_context
from warmfleet_operator.desired.revision import with_revision
from warmfleet_operator.desired.template import overlaid
from warmfleet_operator.settings import OperatorSettings

GRACE_AFTER_DRAIN_SECONDS: Final = 15
"""Between the end of the drain and SIGKILL: for the termination message and the engine's shutdown."""

UNREACHABLE_NODE_SECONDS: Final = 30
"""A worker on an unreachable node is replaced after this; Kubernetes' default is 300."""

_WHOLE_CONTEXT_TOKENS: Final = 16_777_216
"""The worker serves the model's own context where that is shorter."""
_DEVICES_SHARED_MEMORY_BYTES: Final = 2 * 2**30
"""For the processes of several devices, which exchange tensors in it; a container runtime gives 64 MiB."""
_PROBE_TIMEOUT_SECONDS: Final = 5
_STARTUP_PERIOD_SECONDS: Final = 2
_PROGRESS_MARGIN_SECONDS: Final = 600
"""For image pulls and model fetches, which precede the startup budget."""


def replicas(deployment: CheckedDeployment) -> int:
    """Desired number of workers. With autoscaling: `spec.replicas` within its bounds."""
    spec = deployment.spec
    if spec.suspend:
        return 0
    if spec.autoscaling is None:
        return spec.replicas
    return max(spec.autoscaling.min_replicas, min(spec.replicas, spec.autoscaling.max_replicas))


def worker_deployment(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest:
    """The Deployment; its pods carry the revision of their template as a label.

    Raises:
        OverlayError: `spec.podTemplate` contradicts what the operator owns.
    """
    rollout = deployment.spec.rollout
    template = overlaid(pod_template(deployment, settings), deployment)
    strategy = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return child(
        deployment,
        "apps/v1",
        "Deployment",
        spec={
            "replicas": replicas(deployment),
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": rollout.startup_timeout_seconds + _PROGRESS_MARGIN_SECONDS,
            "selector": {"matchLabels": selector(deployment.name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": strategy},
            "template": with_revision(with_memory_request(template, deployment.spec, settings)),
        },
    )


def pod_template(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest:
    """A worker pod before the user's overlay."""
    spec = deployment.spec
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "containers": [_engine(deployment, settings)],
        "enableServiceLinks": False,
        "securityContext": pod_security_context(),
        "serviceAccountName": deployment.name,
        "terminationGracePeriodSeconds": rollout_grace_seconds(deployment),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector(deployment.name)},
                "matchLabelKeys": ["pod-template-hash"],
            }
        ],
        "volumes": _volumes(deployment, settings),
        **scheduling(deployment, settings),
    }
    if init := init_containers(deployment, settings):
        pod["initContainers"] = init
    if spec.accelerator is not None and spec.accelerator.runtime_class_name is not None:
        pod["runtimeClassName"] = spec.accelerator.runtime_class_name
    annotations = {"kubectl.kubernetes.io/default-container": ENGINE_CONTAINER}
    own = {**labels(deployment.name), **(fetching_label() if pods_fetch(deployment) else {})}
    return {"metadata": {"labels": own, "annotations": annotations}, "spec": pod}


def rollout_grace_seconds(deployment: CheckedDeployment) -> int:
    """From SIGTERM to SIGKILL."""
    return deployment.spec.rollout.drain_timeout_seconds + GRACE_AFTER_DRAIN_SECONDS


def scheduling(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest:
    """Scheduling fields of workers and of the fetch Job: both need nodes that can attach the same volume."""
    spec = deployment.spec
    secrets = [*settings.image_pull_secrets, *(reference.name for reference in spec.image_pull_secrets)]
    away = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": UNREACHABLE_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]
    fields: Manifest = {
        "affinity": spec.affinity,
        "imagePullSecrets": [{"name": name} for name in dict.fromkeys(secrets)],
        "nodeSelector": spec.node_selector,
        "priorityClassName": spec.priority_class_name,
        "tolerations": [*away, *spec.tolerations],
    }
    return {name: value for name, value in fields.items() if value}


def _engine(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest:
    resources = _resources(deployment, settings)
    return {
        "name": ENGINE_CONTAINER,
        "image": worker_image(deployment, settings),
        "imagePullPolicy": settings.image_pull_policy,
        "args": _arguments(deployment, resources),
        "env": _environment(deployment),
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": WORKER_PORT, "protocol": "TCP"}],
        "resources": resources,
        "securityContext": container_security_context(),
        "terminationMessagePath": TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(deployment),
        **_probes(deployment),
    }


def _arguments(deployment: CheckedDeployment, resources: Manifest) -> list[str]:
    flags = worker_flags(
        deployment.resource,
        model_path=model_folder(deployment.spec.model.source),
        host="0.0.0.0",  # noqa: S104 - routers connect from other pods
        port=WORKER_PORT,
        uid=f"$({POD_UID_VARIABLE})",
        threads=_threads(resources),
    )
    engine = deployment.spec.engine
    if engine.image and not engine.differs("max_model_length_tokens"):
        # The user's image may be of the release before, which served 4,096 tokens without this argument.
        flags += ("--max-model-length-tokens", str(_WHOLE_CONTEXT_TOKENS))
    if deployment.spec.accelerator is not None and deployment.spec.accelerator.count > 1:
        flags += ("--tensor-parallel-size", str(deployment.spec.accelerator.count))
    # The kubelet makes $ of $$, and leaves it alone then: an argument names no variable, a secret one least.
    flags += tuple(flag.replace("$", "$$") for flag in extra_flags(engine))
    # Routers forward the model name unchanged; this name always identifies the deployment.
    return [*flags, "--served-name", f"{deployment.namespace}/{deployment.name}"]


def _environment(deployment: CheckedDeployment) -> list[dict[str, Any]]:
    key = {"name": NAMESPACE_SECRET, "key": NAMESPACE_SECRET_KEY}
    own: list[dict[str, Any]] = [
        {"name": POD_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": NAMESPACE_KEY_VARIABLE, "valueFrom": {"secretKeyRef": key}},
        {"name": "HOME", "value": TEMPORARY_PATH},
    ]
    theirs = [
        {"name": variable.name, "value": variable.value or ""}
        if variable.value_from is None
        else {"name": variable.name, "valueFrom": variable.value_from}
        for variable in deployment.spec.engine.env
    ]
    named = {variable["name"]: variable for variable in own + theirs}
    return list(named.values())


def _resources(deployment: CheckedDeployment, settings: OperatorSettings) -> Manifest:
    resources = dict(deployment.spec.resources or settings.default_resources)
    accelerator = deployment.spec.accelerator
    if accelerator is None:
        return resources
    return merge(resources, {"limits": {accelerator.resource_name: str(accelerator.count)}})


def _threads(resources: Mapping[str, Any]) -> int:
    """CPU threads of the engine: the cores of its limit, or else of its request; 0, all, without either."""
    cores = quantity(resources, "limits", "cpu")
    if cores is None:
        cores = quantity(resources, "requests", "cpu")
    try:
        return 0 if cores is None else max(1, math.floor(parse_cores(cores)))
    except ValueError:
        return 0  # the API server refuses the quantity with a better message


def _probes(deployment: CheckedDeployment) -> Manifest:
    def get(path: str, period_seconds: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": HTTP_PORT_NAME, "scheme": "HTTP"},
            "periodSeconds": period_seconds,
            "timeoutSeconds": _PROBE_TIMEOUT_SECONDS,
            "failureThreshold": failures,
            "successThreshold": 1,
        }

    budget = deployment.spec.rollout.startup_timeout_seconds
    return {
        "startupProbe": get(
            "/readyz", _STARTUP_PERIOD_SECONDS, max(1, math.ceil(budget / _STARTUP_PERIOD_SECONDS))
        ),
        "readinessProbe": get("/readyz", 5, 2),
        # Fails only by the step watchdog: an overloaded or draining worker is alive.
        "livenessProbe": get("/livez", 10, 3),
    }


def _shared_memory(deployment: CheckedDeployment) -> Manifest | None:
    accelerator = deployment.spec.accelerator
    if accelerator is None:
        return None
    size_bytes = accelerator.shared_memory_size
    if size_bytes is None:
        if accelerator.count == 1:
            return None
        size_bytes = _DEVICES_SHARED_MEMORY_BYTES
    limit = format_bytes(size_bytes)
    return {"name": SHARED_MEMORY_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": limit}}


def _volumes(deployment: CheckedDeployment, settings: OperatorSettings) -> list[Manifest]:
    volumes = [model_volume(deployment), temporary_volume()]
    if pods_fetch(deployment):
        volumes += fetch_volumes(settings)
    shared_memory = _shared_memory(deployment)
    return volumes if shared_memory is None else [*volumes, shared_memory]


def _mounts(deployment: CheckedDeployment) -> list[Manifest]:
    mounts = [model_mount(deployment), temporary_mount()]
    if _shared_memory(deployment) is not None:
        mounts.append({"name": SHARED_MEMORY_VOLUME, "mountPath": "/dev/shm"})  # noqa: S108 - its own
    return mounts
