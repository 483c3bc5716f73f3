"""The token that opens a worker to its routers."""

import hmac

from starlette.datastructures import Headers
from starlette.types import Scope

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.edge import PROBE_PATHS


class BearerToken:
    """Refuses who does not present `token`; with an empty one nobody is refused."""

    def __init__(self, token: bytes) -> None:
        self._token = token

    def refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        """Why a request is refused; probes never are."""
        if not self._token or scope["path"] in PROBE_PATHS:
            return None
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        given = presented.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        if hmac.compare_digest(given, self._token):
            return None
        return RequestError("the request carries no valid bearer token", status=401, code="invalid_api_key")
