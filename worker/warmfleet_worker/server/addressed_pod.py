"""Whom a router means: a worker answers only what is addressed to it."""

from starlette.datastructures import Headers
from starlette.types import Scope

from warmfleet_contracts.cache.worker_api import MISDIRECTED_STATUS, UID_HEADER
from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.edge import PROBE_PATHS, Refusal


class Addressee:
    """Refuses what is addressed to another worker, which had this port, and whatever `refusal` does."""

    def __init__(self, uid: str, refusal: Refusal) -> None:
        self._uid = uid
        self._refusal = refusal

    def refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        """Why a request is refused; probes never are."""
        refused = self._refusal(scope, headers)
        meant = headers.get(UID_HEADER, self._uid)
        if refused is not None or meant == self._uid or scope["path"] in PROBE_PATHS:
            return refused
        return RequestError(
            "this request is addressed to another worker", status=MISDIRECTED_STATUS, code="misdirected"
        )
