"""`/tokenize` and `/detokenize`: answered by any ready worker of the model."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.openai import (
    DetokenizeRequest,
    TokenizeRequest,
    decode_detokenize_request,
    decode_tokenize_request,
)
from warmfleet_router.api.models import model_not_found
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.proxy.exchange import MAX_PLAIN_BODY_BYTES, RETRIED_STATUSES
from warmfleet_router.proxy.headers import PASSED_BACK, request_headers
from warmfleet_router.proxy.proxy import MAX_TRIES
from warmfleet_router.tenants import require_model, tenant_of
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.upstream import Upstream, UpstreamError
from warmfleet_runtime.http.body import decode_body, read_body

WAIT_SECONDS: Final = 30.0

Decoded = TokenizeRequest | DetokenizeRequest


class TokenEndpoints:
    """Checks the body here, so that a bad one costs no worker anything, and passes it on."""

    def __init__(self, fleet: Fleet, upstream: Upstream) -> None:
        self._fleet = fleet
        self._upstream = upstream

    async def tokenize(self, request: Request) -> Response:
        return await self._pass_on(request, decode_tokenize_request)

    async def detokenize(self, request: Request) -> Response:
        return await self._pass_on(request, decode_detokenize_request)

    async def _pass_on(self, request: Request, decode: Callable[[bytes], Decoded]) -> Response:
        body = await read_body(request)
        decoded = await decode_body(body, decode)
        tenant = tenant_of(request)
        if decoded.model is not None:
            require_model(tenant, decoded.model)
        views = self._fleet.workers(decoded.model)
        if decoded.model is not None and not views:
            raise model_not_found(decoded.model, self._fleet, tenant)
        views = [view for view in views if any(tenant.may_call(name) for name in view.served_names)]
        headers = [*request_headers(request.headers.raw), (REQUEST_ID_HEADER, request.state.request_id)]
        for view in [view for view in views if view.ready][:MAX_TRIES]:
            try:
                async with self._upstream.request(
                    view.endpoint,
                    "POST",
                    request.scope["path"],
                    headers=headers,
                    body=body,
                    wait_seconds=WAIT_SECONDS,
                ) as response:
                    if response.status in RETRIED_STATUSES:
                        continue
                    content = await response.body(MAX_PLAIN_BODY_BYTES)
                    passed = {
                        name: value
                        for name in PASSED_BACK
                        if (value := response.headers.get(name)) is not None
                    }
                    return Response(content, response.status, passed)
            except UpstreamError:
                continue
        raise no_worker_error(decoded.model or "any")
