"""`/tokenize` and `/detokenize`: from a body to the workers of the model, any of which can answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.openai import (
    DetokenizeRequest,
    TokenizeRequest,
    decode_detokenize_request,
    decode_tokenize_request,
)
from warmfleet_router.access.permission import Permissions
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.api.models import model_not_found
from warmfleet_router.error_responses import RETRY_AFTER_SECONDS, asleep_error
from warmfleet_router.proxy.headers import request_headers
from warmfleet_router.proxy.text_proxy import TextProxy, TextRequest
from warmfleet_router.routing.prompt_hashes import BYTES_PER_TOKEN
from warmfleet_router.tenants import Tenant, require_model, tenant_of
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_runtime.http.body import decode_body, read_body

Decoded = TokenizeRequest | DetokenizeRequest

TOKEN_DECODERS: Final[dict[str, Callable[[bytes], Decoded]]] = {
    "/tokenize": decode_tokenize_request,
    "/detokenize": decode_detokenize_request,
}


class TokenEndpoint:
    """ASGI endpoint for one path: checks the body here, so that a bad one costs no worker anything."""

    def __init__(
        self,
        decode: Callable[[bytes], Decoded],
        *,
        permissions: Permissions,
        fleet: Fleet,
        limits: InFlightLimits,
        proxy: TextProxy,
    ) -> None:
        self._decode = decode
        self._permissions = permissions
        self._fleet = fleet
        self._limits = limits
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            RequestError: nothing has been sent; what the client gets.
        """
        request = Request(scope, receive)
        tenant = tenant_of(request)
        with self._limits.enter(tenant) as ticket:
            body = await read_body(request, ticket.receive)
            async with ticket.encoding_slot():
                model = (await decode_body(body, self._decode)).model
            self._require_served(tenant, model)
            ticket.estimate_tokens(max(len(body) // BYTES_PER_TOKEN, 1))
            headers = request_headers(request.headers.raw)
            text_request = TextRequest(
                path=scope["path"],
                model=model or "any",
                headers=[
                    *headers,
                    (REQUEST_ID_HEADER, request.state.request_id),
                ],
                body=body,
                ticket=ticket,
                permission=None if model is None else self._permissions.of(request, model),
            )
            workers = partial(self._workers, tenant, model)
            await self._proxy.serve(text_request, workers, scope, request.receive, send)

    def _require_served(self, tenant: Tenant, model: str | None) -> None:
        if model is not None:
            require_model(tenant, model)
            if not self._fleet.workers(model):
                if self._fleet.hold_seconds(model) is not None:
                    raise asleep_error(model, "is asleep", "only completions wake it", RETRY_AFTER_SECONDS)
                raise model_not_found(model, self._fleet, tenant)

    def _workers(self, tenant: Tenant, model: str | None) -> Sequence[WorkerStatus]:
        """Those that the tenant may call now; of `model`, where the request names one."""
        workers = self._fleet.workers(model)
        return [worker for worker in workers if any(map(tenant.may_call, worker.served_names))]
