"""The commit of a branch or tag: what has to be asked for, and where the answer is kept. Pure.

A rollout keeps its commit for as long as its source is as it was: the Deployment carries it, in the same
write as the pods that fetch it, and the status does, too. Either of them is enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.names import RESOLVED_ANNOTATION
from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.hub import is_commit
from warmfleet_operator.desired.checked_deployment import CheckedDeployment


@dataclass(frozen=True, slots=True)
class HubRevision:
    """A branch or tag of a repository."""

    repository: str
    revision: str
    namespace: str = ""
    secret_name: str = ""
    """Of the hub's token, in `namespace`; empty: none."""
    secret_key: str = ""

    def __str__(self) -> str:
        """`owner/name@revision`."""
        return f"{self.repository}@{self.revision}"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why there is no commit yet."""

    reason: Reason
    message: str
    again_seconds: float | None = None
    """Ask again after this; None: its answer will come by itself, or it needs a change."""


def moving_revision(deployment: Mapping[str, Any]) -> HubRevision | None:
    """The revision of a ModelDeployment that has to be resolved; None where it has none or names a commit."""
    source = ((deployment.get("spec") or {}).get("model") or {}).get("source") or {}
    if "huggingFace" not in source:
        return None
    try:
        checked = CheckedDeployment.from_object(deployment)
    except ManifestError:
        return None  # reported as such
    hub = checked.spec.model.source.hugging_face
    if hub is None or is_commit(hub.asked_revision):
        return None
    token = hub.token_secret_ref
    if token is None:
        return HubRevision(hub.repository, hub.asked_revision, checked.namespace)
    return HubRevision(hub.repository, hub.asked_revision, checked.namespace, token.name, token.key)


def known_commit(asked: HubRevision, deployment: Mapping[str, Any], workers: Mapping[str, Any] | None) -> str:
    """The commit that this very revision was resolved to before; empty if it was not.

    Args:
        asked: what the spec names now.
        deployment: the ModelDeployment with its status.
        workers: the Deployment, which counts for more; None if there is none.
    """
    annotations = ((workers or {}).get("metadata") or {}).get("annotations") or {}
    noted, _, commit = str(annotations.get(RESOLVED_ANNOTATION, "")).partition(" ")
    if noted == str(asked) and is_commit(commit):
        return commit
    model = (deployment.get("status") or {}).get("model") or {}
    commit = str(model.get("revision", ""))
    return commit if model.get("resolvedFrom") == str(asked) and is_commit(commit) else ""


def with_commit_noted(workers: Mapping[str, Any], asked: HubRevision, commit: str) -> dict[str, Any]:
    """The desired Deployment with its commit as an annotation, from which `known_commit` reads it.

    Not on its pods: to write the commit into the spec that a branch was resolved to restarts nothing.
    """
    metadata = workers["metadata"]
    annotations = {**(metadata.get("annotations") or {}), RESOLVED_ANNOTATION: f"{asked} {commit}"}
    return {**workers, "metadata": {**metadata, "annotations": annotations}}
