"""Cross-origin requests of browsers: which origins may call, and which headers they may read."""

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from warmfleet_contracts.cache.worker_api import DECISION_HEADER, REQUEST_ID_HEADER
from warmfleet_runtime.http.edge import request_id_of

ANY_ORIGIN: Final = "*"
PREFLIGHT_SECONDS: Final = 600
"""How long a browser may keep the answer to a preflight."""
_ORIGIN: Final = re.compile(
    r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9a-f:]{2,39}\](:[0-9]{1,5})?"
)


def is_origin(text: str) -> bool:
    """Whether `text` is an origin as browsers send it (no path, no trailing slash), or `*`."""
    return text == ANY_ORIGIN or _ORIGIN.fullmatch(text) is not None


class CrossOrigin(CORSMiddleware):
    """Stands outside authentication: a preflight carries no key, and a 401 must be readable, too."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=(REQUEST_ID_HEADER, DECISION_HEADER, "retry-after"),
            max_age=PREFLIGHT_SECONDS,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answered here, so the edge behind gives it no id."""
        response = super().preflight_response(request_headers)
        response.headers[REQUEST_ID_HEADER] = request_id_of(request_headers)
        return response
