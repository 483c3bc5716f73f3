"""Security contexts of the restricted Pod Security Standard, as defaults below the user's overlay.

https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from warmfleet_operator.desired.overlay import merge

Manifest = dict[str, Any]

_POD: Final[Manifest] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
_CONTAINER: Final[Manifest] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

CLAIM_GROUP: Final = 65532
"""Group of the images' user: a claim's root folder belongs to root unless the kubelet changes its group."""


def pod_security_context(*, writes_claim: bool = False) -> Manifest:
    """Of a pod. Without a user id: images set one, and some clusters assign their own."""
    context = copy.deepcopy(_POD)
    if writes_claim:
        context |= {"fsGroup": CLAIM_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def container_security_context() -> Manifest:
    """Of our own containers: restricted, and the root file system read-only."""
    return {**copy.deepcopy(_CONTAINER), "readOnlyRootFilesystem": True}


def restricted_pod(pod_spec: Mapping[str, Any]) -> Manifest:
    """The pod spec with restricted defaults for every field that it and its containers leave out."""
    restricted = {**pod_spec, "securityContext": merge(_POD, pod_spec.get("securityContext") or {})}
    for kind in ("initContainers", "containers"):
        if kind in restricted:
            restricted[kind] = [
                {
                    **container,
                    "securityContext": merge(_CONTAINER, container.get("securityContext") or {}),
                }
                for container in restricted[kind]
            ]
    return restricted
