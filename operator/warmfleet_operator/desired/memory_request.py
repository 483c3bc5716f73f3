"""How much memory a worker pod requests where no request is stated."""

import math
from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.errors import QuantityError
from warmfleet_contracts.names import ENGINE_CONTAINER
from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec
from warmfleet_contracts.resources.quantities import format_bytes, parse_quantity
from warmfleet_contracts.resources.worker_memory import worker_memory_bytes
from warmfleet_operator.desired.metadata import Manifest
from warmfleet_operator.settings import OperatorSettings

_MIB: Final = 2**20


def with_memory_request(
    template: Manifest, spec: ModelDeploymentSpec, settings: OperatorSettings
) -> Manifest:
    """The pod template, its engine's memory request raised to what the model and the KV cache need.

    A request or limit that the user states counts as it is. With an accelerator both are in its own memory.
    The size of a model that is not in the catalog is known only from its first pod, and is left out: were it
    learned then, that pod would be replaced for it.
    """
    if spec.accelerator is not None:
        return template
    default = None if spec.resources else quantity(settings.default_resources, "requests", "memory")
    pod = template["spec"]
    containers = [
        _requesting(container, worker_memory_bytes(spec), default)
        if container["name"] == ENGINE_CONTAINER
        else container
        for container in pod["containers"]
    ]
    return {**template, "spec": {**pod, "containers": containers}}


def quantity(resources: Mapping[str, Any] | None, kind: str, name: str) -> object | None:
    """One quantity of a ResourceRequirements as it is written; None if there is none."""
    quantities = (resources or {}).get(kind)
    return quantities.get(name) if isinstance(quantities, Mapping) else None


def _requesting(container: Manifest, size_bytes: int, default: object | None) -> Manifest:
    """The container with a request of `size_bytes`, unless more is requested, or another than `default`."""
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    request = quantity(resources, "requests", "memory")
    is_stated = request != default or quantity(resources, "limits", "memory") is not None
    if is_stated or not isinstance(requests, Mapping) or _reaches(request, size_bytes):
        return container
    memory = format_bytes(math.ceil(size_bytes / _MIB) * _MIB)
    return {**container, "resources": {**resources, "requests": {**requests, "memory": memory}}}


def _reaches(request: object | None, size_bytes: int) -> bool:
    try:
        return request is not None and parse_quantity(request) >= size_bytes
    except QuantityError:
        return True  # the API server refuses the quantity with a better message
