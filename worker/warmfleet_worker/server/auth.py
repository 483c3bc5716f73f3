"""Authentication of callers, and the check that a request is addressed to this worker."""

import hmac

from starlette.datastructures import Headers
from starlette.types import Scope

from warmfleet_contracts.cache.worker_api import MISDIRECTED_STATUS, UID_HEADER
from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.edge import PROBE_PATHS


class RequestAuth:
    """Refuses requests without the bearer token, and those addressed to another worker. Probes always pass.

    A request is addressed by its `UID_HEADER`: a pod's address may have belonged to another pod before.

        app = Edge(routes, refusal=RequestAuth(settings.uid, settings.token).refusal)
    """

    def __init__(self, uid: str, token: bytes) -> None:
        """With an empty `token` no caller has to present one."""
        self._uid = uid
        self._token = token

    def refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        """The error (401 or 421) to answer with, None for a request that may pass."""
        if scope["path"] in PROBE_PATHS:
            return None
        if self._token and not hmac.compare_digest(_bearer_token(headers), self._token):
            return RequestError(
                "the request carries no valid bearer token", status=401, code="invalid_api_key"
            )
        if headers.get(UID_HEADER, self._uid) != self._uid:
            return RequestError(
                "this request is addressed to another worker", status=MISDIRECTED_STATUS, code="misdirected"
            )
        return None


def _bearer_token(headers: Headers) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
