"""One object as the store keeps it, and the key of a ModelDeployment.

Objects are kept as JSON, which takes a fifth of the memory of the same dictionaries; pods as the fields that
are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.objects.deployment_state import DeploymentState, deployment_state
from warmfleet_operator.objects.kinds import DEPLOYMENT, MODEL_DEPLOYMENT, POD, Kind
from warmfleet_operator.objects.pods import PodView, pod_view
from warmfleet_operator.objects.rollouts import UpgradeState, upgrade_state
from warmfleet_operator.objects.served_names import claim_of, served_names


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One ModelDeployment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of the cluster, as the store keeps it."""

    kind: Kind
    key: Key
    uid: str
    version: int
    owner: Key | None
    """The ModelDeployment that its label names; for a ModelDeployment its own key."""
    body: bytes | PodView
    claim: Claim | None = None
    upgrade: UpgradeState | None = None
    state: DeploymentState | None = None
    """Of a ModelDeployment."""

    def decoded(self) -> dict[str, Any]:
        """The object as a dictionary; not for pods."""
        assert isinstance(self.body, bytes)
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


def entry_of(kind: Kind, body: Mapping[str, Any]) -> Entry:
    """The kept part of an object of the API server."""
    metadata = body["metadata"]
    key = Key(metadata["namespace"], metadata["name"])
    owner: Key | None = key
    kept: bytes | PodView
    if kind is not MODEL_DEPLOYMENT:
        label = (metadata.get("labels") or {}).get(MODEL_DEPLOYMENT_LABEL)
        owner = Key(key.namespace, label) if label else None
    if kind is POD:
        kept = pod_view(body)
    else:
        without = {name: item for name, item in metadata.items() if name != "managedFields"}
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.name, "metadata": without}
        kept = json.dumps(whole, separators=(",", ":")).encode()
    return Entry(
        kind=kind,
        key=key,
        uid=metadata["uid"],
        version=int(metadata["resourceVersion"]),
        owner=owner,
        body=kept,
        claim=_claim(body) if kind is MODEL_DEPLOYMENT else None,
        upgrade=upgrade_state(body) if kind is DEPLOYMENT else None,
        state=deployment_state(body) if kind is MODEL_DEPLOYMENT else None,
    )


def _claim(body: Mapping[str, Any]) -> Claim | None:
    """None if a served name is not a text."""
    return claim_of(body) if all(isinstance(name, str) for name in served_names(body)) else None
