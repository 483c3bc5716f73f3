"""The tenant of a request: the one that its key names, with its limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import Request

from warmfleet_contracts.keys import ANONYMOUS_NAME, OPERATOR_NAME
from warmfleet_contracts.openai import RequestError

TENANT_STATE: Final = "tenant"
"""Where authentication leaves the tenant: `scope["state"]["tenant"]`."""

SCOPES: Final = frozenset({"inference", "metrics", "admin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant as one of its keys sees it: the cache it shares, the models and rates it may use."""

    name: str
    """`anonymous` while the router has no keys."""
    key_id: str = ""
    """The public part of the key; empty without one."""
    sharing_group: str = ""
    """Tenants of one group read each other's cache; empty means the tenant alone."""
    models: frozenset[str] | None = None
    """Served names that may be called; None means all."""
    scopes: frozenset[str] = SCOPES
    weight: float = 1.0
    """Share of a full fleet, relative to other tenants."""
    max_in_flight_requests: int | None = None
    max_in_flight_tokens: int | None = None
    best_priority: int = 0
    """The lowest, which is the most urgent, priority number that its requests may ask for."""
    is_alone: bool = False
    """Whether it is every client: there are no keys, and so no other tenants to leave a share to."""

    def may_call(self, model: str) -> bool:
        """Whether this key lists `model`."""
        return self.models is None or model in self.models

    def priority(self, asked: int) -> int:
        """What a request gets that asks for priority `asked`."""
        return max(asked, self.best_priority)


ANONYMOUS: Final = Tenant(name=ANONYMOUS_NAME, is_alone=True)
"""Every client, as long as there are no keys."""

ANONYMOUS_BESIDE_OPERATOR: Final = replace(ANONYMOUS, scopes=SCOPES - {"admin"})
"""The same where an operator is known: administrators' paths are not open to all any more."""

OPERATOR: Final = Tenant(name=OPERATOR_NAME, key_id="operator", scopes=frozenset({"metrics", "admin"}))
"""The operator, recognized by its token."""


def tenant_of(request: Request) -> Tenant:
    """The tenant that authentication found for `request`."""
    tenant = request.scope["state"][TENANT_STATE]
    assert isinstance(tenant, Tenant), tenant
    return tenant


def require_model(tenant: Tenant, model: str) -> None:
    """Refuse a model that the key does not list, in the same words whether it exists or not.

    Raises:
        RequestError: 403.
    """
    if tenant.models is not None and model not in tenant.models:
        listed = ", ".join(sorted(tenant.models)[:16]) or "none"
        raise RequestError(
            f"model: this key may not call {model[:64]!r}; it may call: {listed}",
            status=403,
            param="model",
            code="model_not_allowed",
        )


def cache_group(tenant: Tenant, shared_caches: Sequence[str]) -> str:
    """The group whose prompts may hit each other's blocks: part of a request's salt.

    `shared_caches` is `Endpoint.shared_cache` of all candidates. Only where they agree on one is it used:
    while a deployment changes its mind, every tenant keeps its cache to itself. The slashes keep groups,
    deployments and tenants apart, whose names hold none.
    """
    agreed = set(shared_caches)
    if len(agreed) == 1 and (deployment := agreed.pop()):
        return f"deployment/{deployment}"
    return f"group/{tenant.sharing_group}" if tenant.sharing_group else tenant.name
