"""Which keys may request which paths, decided on the path that is routed, before the body is read.

The operator has a token of its own: it reads what administrators read, and calls no model. A router
without keys serves every caller as one anonymous tenant; once it knows an operator, `/internal` and `/debug`
are the operator's alone.
"""

import hmac
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from warmfleet_contracts.keys import is_expired
from warmfleet_contracts.openai import RequestError
from warmfleet_router.access.api_keys import KeySource
from warmfleet_router.tenants import ANONYMOUS, ANONYMOUS_BESIDE_OPERATOR, OPERATOR, TENANT_STATE, Tenant

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health"})
METRICS_PATH: Final = "/metrics"
ADMIN_PREFIXES: Final = ("/debug", "/internal")
_INCORRECT: Final = "Incorrect API key provided"
"""OpenAI's text: LiteLLM recognizes a 401 by it."""
_WANTED_HEADER: Final = "send it as `Authorization: Bearer <key>`"


def needed_scopes(path: str) -> frozenset[str]:
    """Scopes of which a key needs one to request `path`; empty for a path that is open to all.

    A path that is not served needs a key, too: without one, a caller learns nothing of what is there.
    """
    if path in OPEN_PATHS:
        return frozenset()
    if path == METRICS_PATH:
        return frozenset({"metrics", "admin"})
    if path.startswith(ADMIN_PREFIXES):
        return frozenset({"admin"})
    return frozenset({"inference"})


class Authentication:
    """Refuses requests without the right to a path; leaves the tenant in the state.

    Without `keys` every caller but the operator is anonymous, with any key or none.
    """

    def __init__(
        self,
        keys: KeySource | None,
        *,
        operator_token: bytes,
        open_metrics: bool,
        on_refused: Callable[[RequestError], None],
    ) -> None:
        """`operator_token`: empty where no operator is known."""
        self._keys = keys
        self._operator_token = operator_token
        self._anonymous = ANONYMOUS_BESIDE_OPERATOR if operator_token else ANONYMOUS
        self._open_metrics = open_metrics
        self._on_refused = on_refused

    def refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        """As `check`; a refusal is counted."""
        error = self.check(scope, headers)
        if error is not None:
            self._on_refused(error)
        return error

    def check(self, scope: Scope, headers: Headers) -> RequestError | None:
        """Why a request is refused now; None where it may go on, with its tenant in `scope["state"]`."""
        path = scope["path"]
        needed = needed_scopes(path)
        if not needed or (path == METRICS_PATH and self._open_metrics):
            return None
        found = self._tenant(headers)
        if isinstance(found, RequestError):
            return found
        if self._keys is not None or found is OPERATOR:
            scope["state"]["facts"].update(tenant=found.name, key_id=found.key_id)
        if not needed & found.scopes:
            return _without_scope(found, path, needed)
        scope["state"][TENANT_STATE] = found
        return None

    def _tenant(self, headers: Headers) -> Tenant | RequestError:
        given = headers.getlist("authorization")
        scheme, _, presented = (given[0] if given else "").partition(" ")
        # Two headers would be one key for us and perhaps the other for a proxy before us.
        well_formed = len(given) == 1 and scheme.lower() == "bearer"
        presented = presented.strip() if well_formed else ""
        if self._is_operator(presented):
            return OPERATOR
        if self._keys is None:
            return self._anonymous
        if not given:
            return _unauthorized(f"no API key was given; {_WANTED_HEADER}")
        found = self._keys.find(presented)
        if found is None:
            wanted = "" if well_formed else f"; {_WANTED_HEADER}"
            return _unauthorized(f"{_INCORRECT}: it is not valid here{wanted}")
        tenant, entry = found
        return tenant if not is_expired(entry) else _unauthorized(f"{_INCORRECT}: it has expired")

    def _is_operator(self, presented: str) -> bool:
        token = presented.encode("latin-1", "replace")
        return bool(self._operator_token) and hmac.compare_digest(token, self._operator_token)


def _without_scope(tenant: Tenant, path: str, needed: frozenset[str]) -> RequestError:
    if tenant is ANONYMOUS_BESIDE_OPERATOR:
        return _unauthorized(f"{path[:128]} needs a token; {_WANTED_HEADER}")
    return RequestError(
        f"this key has no scope for {path[:128]}; it needs {' or '.join(sorted(needed))}",
        status=403,
        code="missing_scope",
    )


def _unauthorized(message: str) -> RequestError:
    return RequestError(message, status=401, code="invalid_api_key")
