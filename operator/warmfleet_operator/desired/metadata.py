"""Names, labels and owner references of a ModelDeployment's children. They are API: users select by them."""

import hashlib
from typing import Any, Final

from warmfleet_contracts.names import (
    API_VERSION,
    APP_COMPONENT_LABEL,
    APP_NAME,
    COMPONENT_LABEL,
    FETCHING_LABEL,
    INSTANCE_LABEL,
    KIND,
    MANAGED_BY,
    MANAGED_BY_LABEL,
    MODEL_DEPLOYMENT_LABEL,
    MODEL_FETCH_COMPONENT,
    NAME_LABEL,
    PART_OF_LABEL,
    WORKER_COMPONENT,
)
from warmfleet_contracts.resources.model_fetch import fetch_key
from warmfleet_operator.desired.checked_deployment import CheckedDeployment

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""

MAX_LABEL_VALUE_LENGTH: Final = 63
_NAME_HASH_LENGTH: Final = 8


def selector(name: str, component: str = WORKER_COMPONENT) -> dict[str, str]:
    """Labels that select the pods of a deployment. They never change: its selector is immutable."""
    return {MODEL_DEPLOYMENT_LABEL: name, COMPONENT_LABEL: component}


def labels(name: str, component: str = WORKER_COMPONENT) -> dict[str, str]:
    """Labels of every child and of its pods."""
    return {
        NAME_LABEL: APP_NAME,
        INSTANCE_LABEL: name,
        APP_COMPONENT_LABEL: component,
        PART_OF_LABEL: APP_NAME,
        MANAGED_BY_LABEL: MANAGED_BY,
        **selector(name, component),
    }


def child(
    deployment: CheckedDeployment,
    api_version: str,
    kind: str,
    name: str = "",
    component: str = WORKER_COMPONENT,
    **body: object,
) -> Manifest:
    """A namespaced object owned by the ModelDeployment, with its name unless `name` is given."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or deployment.name,
            "namespace": deployment.namespace,
            "labels": labels(deployment.name, component),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": deployment.name,
                    "uid": deployment.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }


def fetch_job_name(deployment: CheckedDeployment) -> str:
    """`<name>-fetch-<key>`; `key` identifies the source. A name too long for a label is cut and hashed."""
    suffix = f"-fetch-{fetch_key(deployment.spec.model.source)}"
    return _within(deployment.name, MAX_LABEL_VALUE_LENGTH - len(suffix)) + suffix


def fetch_policy_name(deployment: CheckedDeployment) -> str:
    """Name of the NetworkPolicy of the fetching pods."""
    return f"{deployment.name}-fetch"


def fetch_labels(deployment: CheckedDeployment) -> dict[str, str]:
    """Labels of the pods that fetch the model."""
    return labels(deployment.name, MODEL_FETCH_COMPONENT)


def fetching_label() -> dict[str, str]:
    """The label of a worker's pod that fetches the model itself; the operator removes it afterwards."""
    return {FETCHING_LABEL: "true"}


def _within(name: str, length: int) -> str:
    if len(name) <= length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_NAME_HASH_LENGTH]
    return f"{name[: length - _NAME_HASH_LENGTH - 1].rstrip('-')}-{digest}"
