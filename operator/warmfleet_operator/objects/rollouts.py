"""The state of a rollout of worker pods, what caused it, and when an upgrade may start.

An edit of a ModelDeployment rolls its pods at once. A new release of the operator changes the pods of every
ModelDeployment in the cluster; it rolls one of them at a time, so that a release that breaks workers breaks
those of one deployment only.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from warmfleet_contracts.names import (
    ENGINE_CONTAINER,
    REVISION_LABEL,
    ROLLOUT_ANNOTATION,
    TEMPLATE_SPEC_ANNOTATION,
)
from warmfleet_operator.objects.digest import digest
from warmfleet_operator.objects.releases import release_of
from warmfleet_operator.settings import Release

K = TypeVar("K")

_NOT_OF_THE_TEMPLATE: Final = frozenset({"replicas", "autoscaling", "suspend", "routing"})


class Cause(StrEnum):
    """What caused the current pod template of a Deployment."""

    SPEC = "Spec"
    UPGRADE = "Upgrade"


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Whether a Deployment is being upgraded."""

    cause: str
    complete: bool
    release: Release | None = None
    """The one that upgrades it."""

    @property
    def upgrading(self) -> bool:
        return self.cause == Cause.UPGRADE and not self.complete


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Digest of the fields of a ModelDeployment's spec that shape pods; independent of its scale.

    `spec` is without fields that equal their default, which a new definition may add to every object.
    """
    return digest({name: value for name, value in spec.items() if name not in _NOT_OF_THE_TEMPLATE})


def rollout_complete(deployment: Mapping[str, Any]) -> bool:
    """Whether every pod is of the newest template and available, and no older pod is left."""
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    wanted = int(spec.get("replicas", 1))
    counts = [int(status.get(name) or 0) for name in ("updatedReplicas", "replicas", "availableReplicas")]
    generation = int(deployment["metadata"].get("generation") or 0)
    return int(status.get("observedGeneration") or 0) >= generation and counts == [wanted] * 3


def rollout_was_complete(deployment: Mapping[str, Any]) -> bool:
    """Whether Kubernetes has reported the newest template's rollout as complete.

    Unlike `rollout_complete` it stays true when a pod is lost later, or while the Deployment is scaled.
    """
    status = deployment.get("status") or {}
    if int(status.get("observedGeneration") or 0) < int(deployment["metadata"].get("generation") or 0):
        return False
    # When an older template is applied again, the reason of its first rollout stands until pods are replaced.
    if int(status.get("updatedReplicas") or 0) < int(status.get("replicas") or 0):
        return False
    return any(
        condition["type"] == "Progressing" and condition.get("reason") == "NewReplicaSetAvailable"
        for condition in status.get("conditions") or ()
    )


def upgrade_state(deployment: Mapping[str, Any]) -> UpgradeState:
    """Whether a Deployment of the API server is being upgraded."""
    annotations = deployment["metadata"].get("annotations") or {}
    complete = rollout_was_complete(deployment) or rollout_complete(deployment)
    return UpgradeState(annotations.get(ROLLOUT_ANNOTATION, ""), complete, release_of(deployment))


def template_revision(deployment: Mapping[str, Any]) -> str:
    """The revision label of the Deployment's pod template."""
    labels = deployment["spec"]["template"]["metadata"].get("labels") or {}
    return str(labels.get(REVISION_LABEL, ""))


def template_image(deployment: Mapping[str, Any]) -> str:
    """The image of the engine in the Deployment's pod template; empty if that has no engine."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    images = (str(item.get("image", "")) for item in containers if item["name"] == ENGINE_CONTAINER)
    return next(images, "")


def cause_of(desired: Mapping[str, Any], existing: Mapping[str, Any] | None, specs: Collection[str]) -> Cause:
    """What causes the desired template; `specs` are the hashes that stand for the current spec."""
    if existing is None:
        return Cause.SPEC
    annotations = existing["metadata"].get("annotations") or {}
    if template_revision(desired) == template_revision(existing):
        return Cause.UPGRADE if annotations.get(ROLLOUT_ANNOTATION) == Cause.UPGRADE else Cause.SPEC
    return Cause.UPGRADE if annotations.get(TEMPLATE_SPEC_ANNOTATION) in specs else Cause.SPEC


def annotated(deployment: Mapping[str, Any], cause: Cause, spec: str) -> dict[str, Any]:
    """The desired Deployment with the annotations that the next `cause_of` reads."""
    metadata = deployment["metadata"]
    annotations = dict(metadata.get("annotations") or {})
    annotations |= {ROLLOUT_ANNOTATION: cause.value, TEMPLATE_SPEC_ANNOTATION: spec}
    return {**deployment, "metadata": {**metadata, "annotations": annotations}}


def blocking(key: K, upgrades: Iterable[tuple[K, UpgradeState]], own: Collection[Release]) -> K | None:
    """Another deployment of our releases that is being upgraded; None if the upgrade of `key` may start."""
    return next(
        (
            other
            for other, state in upgrades
            if other != key and state.upgrading and (state.release is None or state.release in own)
        ),
        None,
    )
