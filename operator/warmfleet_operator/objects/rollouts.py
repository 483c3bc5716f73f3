"""Who causes a rollout of worker pods, and when one that nobody asked for may begin.

A user who edits a ModelDeployment gets the rollout at once. A new release of the operator changes the pods of
every deployment in the cluster, and rolls them one deployment at a time: a release that breaks workers breaks
those of one.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from warmfleet_contracts.names import REVISION_LABEL, ROLLOUT_ANNOTATION, TEMPLATE_SPEC_ANNOTATION

K = TypeVar("K")

_NOT_OF_THE_TEMPLATE: Final = frozenset({"replicas", "autoscaling", "suspend", "routing"})


class Cause(StrEnum):
    """Why a Deployment's pods are as they are."""

    SPEC = "Spec"
    UPGRADE = "Upgrade"


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Of one Deployment: whether an upgrade is under way."""

    cause: str
    complete: bool

    @property
    def upgrading(self) -> bool:
        return self.cause == Cause.UPGRADE and not self.complete


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Of what a user wrote, the part that shapes pods: scaling one is no reason to roll it."""
    shaping = {name: value for name, value in spec.items() if name not in _NOT_OF_THE_TEMPLATE}
    return digest(shaping)


def digest(value: object) -> str:
    """16 hex digits over canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def rollout_complete(deployment: Mapping[str, Any]) -> bool:
    """Whether all pods are of the newest template and available, and no other is left."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    counts = [int(status.get(name) or 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    seen = int(status.get("observedGeneration") or 0) >= int(deployment["metadata"].get("generation") or 0)
    return seen and counts == [wanted] * 3


def upgrade_state(deployment: Mapping[str, Any]) -> UpgradeState:
    """Where a Deployment stands."""
    annotations = deployment["metadata"].get("annotations") or {}
    return UpgradeState(annotations.get(ROLLOUT_ANNOTATION, ""), rollout_complete(deployment))


def template_revision(deployment: Mapping[str, Any]) -> str:
    """The revision that the pod template is labelled with."""
    labels = deployment["spec"]["template"]["metadata"].get("labels") or {}
    return str(labels.get(REVISION_LABEL, ""))


def cause_of(desired: Mapping[str, Any], observed: Mapping[str, Any] | None, spec: str) -> Cause:
    """Why the Deployment would get the desired template; `spec` is the hash of what the user wrote."""
    if observed is None:
        return Cause.SPEC
    annotations = observed["metadata"].get("annotations") or {}
    if template_revision(desired) == template_revision(observed):
        return Cause.UPGRADE if annotations.get(ROLLOUT_ANNOTATION) == Cause.UPGRADE else Cause.SPEC
    return Cause.UPGRADE if annotations.get(TEMPLATE_SPEC_ANNOTATION) == spec else Cause.SPEC


def annotated(deployment: Mapping[str, Any], cause: Cause, spec: str) -> dict[str, Any]:
    """The desired Deployment with what the next decision needs to know."""
    metadata = deployment["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations |= {ROLLOUT_ANNOTATION: cause.value, TEMPLATE_SPEC_ANNOTATION: spec}
    return {**deployment, "metadata": {**metadata, "annotations": annotations}}


def blocking(key: K, upgrades: Iterable[tuple[K, UpgradeState]]) -> K | None:
    """The other deployment whose upgrade has to end first; None = `key` may begin."""
    return next((other for other, state in upgrades if other != key and state.upgrading), None)
