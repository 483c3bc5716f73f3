"""The kinds of objects that the operator reads and writes, and their API paths."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_contracts.names import API_VERSION, KIND, PLURAL
from warmfleet_runtime.kubernetes.paths import resource_path


@dataclass(frozen=True, slots=True)
class Kind:
    """A namespaced kind."""

    api_version: str
    name: str
    plural: str

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Path of a collection, an object or its subresource; `namespace` None selects all namespaces."""
        return resource_path(
            self.api_version, self.plural, namespace=namespace or "", name=name, subresource=subresource
        )


MODEL_DEPLOYMENT: Final = Kind(API_VERSION, KIND, PLURAL)
DEPLOYMENT: Final = Kind("apps/v1", "Deployment", "deployments")
SERVICE: Final = Kind("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
DISRUPTION_BUDGET: Final = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
JOB: Final = Kind("batch/v1", "Job", "jobs")
POD: Final = Kind("v1", "Pod", "pods")
SECRET: Final = Kind("v1", "Secret", "secrets")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")

CHILDREN: Final = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, DISRUPTION_BUDGET, JOB, DEPLOYMENT)
"""Kinds of the objects that a ModelDeployment owns, in the order in which they are applied."""

WATCHED: Final = (MODEL_DEPLOYMENT, *CHILDREN, POD)
"""Kinds that the operator lists and watches.

A kind added here also needs list and watch in charts/warmfleet/templates/_rules.tpl and a row in
docs/reference/rbac.md. Except for ModelDeployments, only objects with the ModelDeployment label are watched.
"""


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """The kind of a manifest; raises KeyError for a kind that the operator does not know."""
    return _BY_NAME[manifest["apiVersion"], manifest["kind"]]


_BY_NAME: Final = {(kind.api_version, kind.name): kind for kind in (*WATCHED, SECRET, LEASE, EVENT)}
