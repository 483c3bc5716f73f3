"""`spec.model`: what is served, under which names, and where the files come from and are kept."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from warmfleet_contracts.resources.fields import (
    LOCAL_CONTEXT,
    MOST_BYTES,
    ObjectName,
    Resource,
    SecretKeyReference,
    require_distinct,
)
from warmfleet_contracts.resources.hub import DEFAULT_REVISION
from warmfleet_contracts.resources.quantities import Bytes

ServedName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$", max_length=128)]


class CatalogSource(Resource):
    """A model that warmfleet knows how to fetch."""

    name: ObjectName = Field(description="Name in the catalog; `warmfleet model list` shows them.")


class HuggingFaceSource(Resource):
    """A repository on the Hugging Face hub, at one commit for all pods of a rollout."""

    repository: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*$",
        max_length=192,
        description="--model: `owner/name`.",
    )
    revision: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_+-]*([./][A-Za-z0-9_+-]+)*$",
        max_length=255,
        description="--revision: best a full commit hash; a branch or tag is resolved to its commit once, "
        "when the source changes. Default: main.",
    )
    token_secret_ref: SecretKeyReference | None = Field(
        default=None, description="Token for a private or gated repository. Default: anonymous."
    )

    @property
    def asked_revision(self) -> str:
        """Commit, branch or tag."""
        return self.revision or DEFAULT_REVISION


class ImageSource(Resource):
    """An OCI image whose root holds the model's files."""

    reference: str = Field(
        min_length=1,
        max_length=512,
        pattern=r"^[!-~]+$",
        description="Image reference, best with a digest.",
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="When the kubelet pulls the image."
    )


class PersistentVolumeClaimSource(Resource):
    """A claim that already holds the model's files."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    sub_path: str = Field(default="", max_length=1024, description="Folder inside the volume; empty = root.")

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.sub_path.startswith("/") or ".." in self.sub_path.split("/"):
            raise ValueError("subPath must be relative and must not contain ..")
        return self


class LocalPathSource(Resource):
    """A folder on this machine; only `warmfleet up` accepts it."""

    path: str = Field(min_length=1, max_length=4096, description="Hugging Face model folder.")


class ModelSource(Resource):
    """Where the model's files come from: exactly one member."""

    catalog: CatalogSource | None = Field(default=None, description="A model of warmfleet's catalog.")
    hugging_face: HuggingFaceSource | None = Field(default=None, description="A repository on the hub.")
    image: ImageSource | None = Field(default=None, description="An OCI image.")
    persistent_volume_claim: PersistentVolumeClaimSource | None = Field(
        default=None, description="A claim that holds the files."
    )
    local_path: LocalPathSource | None = Field(
        default=None, description="A folder on this machine; only for `warmfleet up`."
    )

    @model_validator(mode="after")
    def _exactly_one(self, validation: ValidationInfo) -> Self:
        cluster = ("catalog", "hugging_face", "image", "persistent_volume_claim")
        if (validation.context or {}).get(LOCAL_CONTEXT):
            self.require_one(*cluster, "local_path")
        elif self.local_path is not None:
            raise ValueError("localPath names a folder of one machine; only `warmfleet up` accepts it")
        else:
            self.require_one(*cluster)
        return self


class EmptyDirCache(Resource):
    """Model files on the node's disk, for one pod's life."""

    size_limit: Bytes | None = Field(
        default=None, ge=1, le=MOST_BYTES, description="Bytes, as a quantity to 1Pi. Default: none."
    )


class ClaimCache(Resource):
    """Model files on a claim, filled once by a Job and shared by all replicas."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")


class ModelCache(Resource):
    """Where fetched files are kept in the cluster: exactly one member."""

    empty_dir: EmptyDirCache | None = Field(default=None, description="One copy per pod.")
    persistent_volume_claim: ClaimCache | None = Field(default=None, description="One copy for all pods.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        self.require_one("empty_dir", "persistent_volume_claim")
        return self


class ModelSpec(Resource):
    """What is served, and under which names."""

    served_names: tuple[ServedName, ...] = Field(
        default=(),
        max_length=8,
        strict=False,
        description="--served-model-name: values of `model` that requests may use, up to 8. "
        "Default: metadata.name.",
    )
    source: ModelSource = Field(description="Where the files come from.")
    cache: ModelCache | None = Field(default=None, description="Where a cluster keeps them.")

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        require_distinct(self.served_names, "servedNames")
        return self

    @model_validator(mode="after")
    def _cache_of_fetched_files(self) -> Self:
        mounted = self.source.chosen("image", "persistent_volume_claim")
        if self.cache is not None and mounted:
            raise ValueError(
                f"cache is for fetched files; the volume of source.{mounted[0]} is mounted as it is"
            )
        return self
