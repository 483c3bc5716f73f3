"""The two resources of a cluster that a router reads, reduced to what it needs of them.

Other fields are skipped while an object is decoded: they take no memory, and a newer operator may add some.
"""

from typing import Final

import msgspec

from warmfleet_contracts.names import MODEL_DEPLOYMENT_LABEL
from warmfleet_contracts.resources.ownership import claimed_names

DEFAULT_HOLD_SECONDS: Final = 300
"""Of `ZeroRule` in the contract, whose classes routers do not load."""


class Metadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Of any object."""

    name: str
    namespace: str
    uid: str = ""
    creation_timestamp: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None


class _Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    served_names: tuple[str, ...] = ()


class _KvCache(msgspec.Struct, frozen=True, omit_defaults=True):
    sharing: str = ""


class _Routing(msgspec.Struct, frozen=True, omit_defaults=True):
    policy: str = ""


class _Zero(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    hold_seconds: int = DEFAULT_HOLD_SECONDS


class _Autoscaling(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    mode: str = "Active"
    min_replicas: int = 1
    zero: _Zero | None = None


class _ModelDeploymentSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    model: _Model = _Model()
    kv_cache: _KvCache = _KvCache()
    routing: _Routing = _Routing()
    autoscaling: _Autoscaling | None = None
    suspend: bool = False


class _NameClaim(msgspec.Struct, frozen=True):
    name: str
    since: str


class _ModelDeploymentStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name_claims: tuple[_NameClaim, ...] = ()


class ModelDeploymentObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A ModelDeployment: the names it claims, and how its workers are to be used."""

    metadata: Metadata
    spec: _ModelDeploymentSpec = _ModelDeploymentSpec()
    status: _ModelDeploymentStatus = _ModelDeploymentStatus()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that it claims: its own where it lists none."""
        return claimed_names(self.spec.model.served_names, self.metadata.name)

    @property
    def hold_seconds(self) -> int | None:
        """How long its requests may be held while it sleeps; None if it may not sleep."""
        scaling = self.spec.autoscaling
        if scaling is None or self.spec.suspend or scaling.mode != "Active" or scaling.min_replicas > 0:
            return None
        return (scaling.zero or _Zero()).hold_seconds

    @property
    def recorded_claims(self) -> dict[str, str]:
        """Since when it claims its names, as the operator has recorded it."""
        return {claim.name: claim.since for claim in self.status.name_claims}


class _TargetReference(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SliceEndpoint(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One pod of a slice. Its conditions are not read: the worker reports its own readiness to the router."""

    addresses: tuple[str, ...] = ()
    target_ref: _TargetReference | None = None


class SlicePort(msgspec.Struct, frozen=True, omit_defaults=True):
    """A port that all pods of a slice have."""

    name: str | None = None
    port: int | None = None


class EndpointSliceObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An EndpointSlice: pods of one Service, and their addresses."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[SliceEndpoint, ...] | None = None
    ports: tuple[SlicePort, ...] | None = None

    @property
    def deployment_key(self) -> tuple[str, str]:
        """Namespace and name of the ModelDeployment whose pods these are."""
        return self.metadata.namespace, (self.metadata.labels or {}).get(MODEL_DEPLOYMENT_LABEL, "")
