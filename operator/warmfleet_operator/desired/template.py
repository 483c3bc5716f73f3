"""Merges a user's `spec.podTemplate` into a pod template, and refuses changes of what the operator owns."""

from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.names import ENGINE_CONTAINER, GROUP, MODEL_FETCH_CONTAINER
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.errors import OverlayError
from warmfleet_operator.desired.metadata import Manifest
from warmfleet_operator.desired.overlay import merge
from warmfleet_operator.desired.pod_security import restricted_pod

_FIELD: Final = "spec.podTemplate"
_OWN_VARIABLES: Final = "WARMFLEET_"
_OF_EVERY_POD: Final = ("dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "securityContext")
"""Fields of the overlay that apply to the fetch Job as well as to workers."""


def overlaid(template: Manifest, deployment: CheckedDeployment) -> Manifest:
    """The worker's pod template with the overlay, and with restricted defaults where it sets none.

    Raises:
        OverlayError: the overlay cannot be merged, or changes labels, variables or containers of the
        operator.
    """
    merged = merge(template, _overlay(deployment), _FIELD)
    _require_own(template, merged)
    return {**merged, "spec": restricted_pod(merged["spec"])}


def overlaid_job(template: Manifest, deployment: CheckedDeployment) -> Manifest:
    """The fetch Job's pod template with the overlay's fields for every pod and for `model-fetch`.

    Raises:
        OverlayError: as for the worker.
    """
    spec = _overlay(deployment).get("spec") or {}
    partial: Manifest = {name: spec[name] for name in _OF_EVERY_POD if name in spec}
    containers = [
        container
        for container in spec.get("initContainers") or ()
        if isinstance(container, Mapping) and container.get("name") == MODEL_FETCH_CONTAINER
    ]
    if containers:
        partial["containers"] = containers
    merged = merge(template, {"spec": partial}, _FIELD)
    _require_own_variables(template, merged)
    return {**merged, "spec": restricted_pod(merged["spec"])}


def _overlay(deployment: CheckedDeployment) -> dict[str, Any]:
    overlay = deployment.spec.pod_template
    if overlay is None:
        return {}
    return {
        name: value
        for name, value in (("metadata", overlay.metadata), ("spec", overlay.spec))
        if value is not None
    }


def _require_own(template: Manifest, merged: Manifest) -> None:
    _require_own_labels(template, merged)
    names = {container["name"] for container in _containers(merged, "containers")}
    if ENGINE_CONTAINER not in names:
        raise OverlayError(f"{_FIELD}.spec.containers", f"takes away the container {ENGINE_CONTAINER}")
    _require_own_variables(template, merged)


def _require_own_labels(template: Manifest, merged: Manifest) -> None:
    field = f"{_FIELD}.metadata.labels"
    owned, labels = template["metadata"]["labels"], merged["metadata"].get("labels", {})
    for name, value in owned.items():
        if labels.get(name) != value:
            raise OverlayError(f"{field}[{name}]", "is set by warmfleet itself, selectors depend on it")
    for name in sorted(labels.keys() - owned.keys()):
        if name.split("/")[0] == GROUP:
            raise OverlayError(f"{field}[{name}]", f"labels of {GROUP} are set by warmfleet itself")


def _require_own_variables(template: Manifest, merged: Manifest) -> None:
    for kind in ("containers", "initContainers"):
        ours = {item["name"]: _own_variables(item) for item in _containers(template, kind)}
        for container in _containers(merged, kind):
            name = container["name"]
            expected, found = ours.get(name, {}), _own_variables(container)
            for variable in sorted(expected.keys() | found.keys()):
                if found.get(variable) != expected.get(variable):
                    raise OverlayError(
                        f"{_FIELD}.spec.{kind}[{name}].env[{variable}]",
                        f"variables that begin with {_OWN_VARIABLES} are set by warmfleet itself",
                    )


def _own_variables(container: Mapping[str, Any]) -> dict[str, Any]:
    return {
        variable["name"]: variable
        for variable in container.get("env") or ()
        if str(variable["name"]).startswith(_OWN_VARIABLES)
    }


def _containers(template: Manifest, kind: str) -> list[dict[str, Any]]:
    containers: list[dict[str, Any]] = template["spec"].get(kind) or []
    return containers
