"""A checked ModelDeployment of the API server, with the metadata that its children need."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment, ModelDeploymentSpec
from warmfleet_contracts.resources.model_fetch import at_commit


@dataclass(frozen=True, slots=True)
class CheckedDeployment:
    """The input of `desired_objects`.

    deployment = CheckedDeployment.from_object(store.deployment(key))
    deployment.spec.replicas, deployment.namespace, deployment.uid
    """

    resource: ModelDeployment
    namespace: str
    uid: str

    @classmethod
    def from_object(cls, raw: Mapping[str, Any]) -> Self:
        """Check an object of the API server.

        The definition in the cluster may be newer than the operator: fields that this version does not know
        are left out, and labels, annotations and status are not checked.

        Raises:
            ManifestError: it is not a ModelDeployment that this version understands.
        """
        metadata = raw.get("metadata") or {}
        return cls(
            resource=parse_manifest(
                {
                    **{name: raw[name] for name in ("apiVersion", "kind", "spec") if name in raw},
                    "metadata": {name: metadata[name] for name in ("name", "namespace") if name in metadata},
                },
                origin=str(metadata.get("name", "manifest")),
                ignore_unknown=True,
            ),
            namespace=str(metadata.get("namespace", "")),
            uid=str(metadata.get("uid", "")),
        )

    @property
    def name(self) -> str:
        return self.resource.metadata.name

    @property
    def spec(self) -> ModelDeploymentSpec:
        return self.resource.spec

    def written_spec(self) -> dict[str, Any]:
        """The spec as plain data, without fields that equal their default.

        The API server adds the defaults of its definition to every object. A release that adds a field with a
        default must not look like an edit of every ModelDeployment.
        """
        return self.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def at_commit(self, commit: str) -> Self:
        """The same deployment with its branch or tag replaced by the commit that it was resolved to."""
        model = self.spec.model
        pinned = model.model_copy(update={"source": at_commit(model.source, commit)})
        spec = self.spec.model_copy(update={"model": pinned})
        return replace(self, resource=self.resource.model_copy(update={"spec": spec}))
