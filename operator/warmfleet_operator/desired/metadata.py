"""Names, labels and owners of a ModelDeployment's children. All of them are API: people select on them."""

import hashlib
from typing import Any, Final

from warmfleet_contracts.names import (
    API_VERSION,
    APP_COMPONENT_LABEL,
    APP_NAME,
    COMPONENT_LABEL,
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
from warmfleet_operator.desired.observed import ObservedDeployment

Manifest = dict[str, Any]
"""A Kubernetes object as plain data."""

MAX_LABEL_VALUE_LENGTH: Final = 63
_NAME_HASH_LENGTH: Final = 8


def selector(name: str, component: str = WORKER_COMPONENT) -> dict[str, str]:
    """What selects the pods of a deployment. A Deployment's selector is immutable: this never changes."""
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
    observed: ObservedDeployment,
    api_version: str,
    kind: str,
    name: str = "",
    component: str = WORKER_COMPONENT,
    **body: object,
) -> Manifest:
    """A namespaced object that goes when the ModelDeployment goes; named after it unless `name` is given."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name or observed.name,
            "namespace": observed.namespace,
            "labels": labels(observed.name, component),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": observed.name,
                    "uid": observed.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **body,
    }


def fetch_job_name(observed: ObservedDeployment) -> str:
    """`<name>-fetch-<key>`: another source is another Job. A name too long for a label is cut and hashed."""
    suffix = f"-fetch-{fetch_key(observed.spec.model.source)}"
    return _within(observed.name, MAX_LABEL_VALUE_LENGTH - len(suffix)) + suffix


def fetch_policy_name(observed: ObservedDeployment) -> str:
    """NetworkPolicy of the fetching pods."""
    return f"{observed.name}-fetch"


def fetch_labels(observed: ObservedDeployment) -> dict[str, str]:
    """Labels of the pods that fetch the model."""
    return labels(observed.name, MODEL_FETCH_COMPONENT)


def _within(name: str, length: int) -> str:
    if len(name) <= length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_NAME_HASH_LENGTH]
    return f"{name[: length - _NAME_HASH_LENGTH - 1].rstrip('-')}-{digest}"
