"""What a request may still do after it has waited: keys are revoked and names change owners meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from warmfleet_contracts.openai import RequestError
from warmfleet_router.error_responses import other_owner_error
from warmfleet_router.tenants import require_model, tenant_of

CheckKey = Callable[[Scope, Headers], RequestError | None]
"""`Authentication.check`."""
OwnerOf = Callable[[str], str | None]
"""`Fleet.owner`: of a served name."""


@dataclass(frozen=True, slots=True)
class Permission:
    """Of `request`, to ask `owner`'s workers for `model`."""

    request: Request
    model: str
    owner: str | None
    """Of the name when the request's body was decoded; None where none was known."""
    check_key: CheckKey
    owner_of: OwnerOf

    def require(self) -> None:
        """Check it again; the tenant becomes what its key names now.

        Raises:
            RequestError: 401 or 403, its key was revoked or may not call the model any more; 503, the name
                went to another owner.
        """
        if (refusal := self.check_key(self.request.scope, self.request.headers)) is not None:
            raise refusal
        require_model(tenant_of(self.request), self.model)
        # Another namespace, which may get the name, is to see no prompt that came before.
        if self.owner_of(self.model) not in (self.owner, None):
            raise other_owner_error(self.model)


class Permissions:
    """Gives each request its permission, by the owner that the name has now."""

    def __init__(self, check_key: CheckKey, owner_of: OwnerOf) -> None:
        self._check_key = check_key
        self._owner_of = owner_of

    def of(self, request: Request, model: str) -> Permission:
        """The permission of a request whose model has just become known."""
        return Permission(request, model, self._owner_of(model), self._check_key, self._owner_of)
