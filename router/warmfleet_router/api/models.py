"""`/v1/models`: the models of the fleet, as far as a key may call them."""

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warmfleet_contracts.openai import RequestError
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.tenants import Tenant, require_model, tenant_of
from warmfleet_router.workers.fleet import Fleet


class ModelEndpoints:
    """Lists models in OpenAI's format."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._started_seconds = int(time.time())

    async def models(self, request: Request) -> Response:
        """What the caller's key may call."""
        tenant = tenant_of(request)
        names = [name for name in self._fleet.models() if tenant.may_call(name)]
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """One of them.

        Raises:
            RequestError: 403 or 404.
        """
        name, tenant = request.path_params["id"], tenant_of(request)
        require_model(tenant, name)
        if name not in self._fleet.models():
            raise model_not_found(name, self._fleet, tenant)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, object]:
        lengths = [
            view.hello.max_model_length_tokens for view in self._fleet.workers(name) if view.hello is not None
        ]
        return {
            "id": name,
            "object": "model",
            "created": self._started_seconds,
            "owned_by": "warmfleet",
            "root": name,  # vLLM's field; its benchmark client takes it for the model's name
            # The least of all replicas: what is within it fits wherever the request goes.
            "max_model_len": min(lengths, default=None),
        }


def model_not_found(model: str, fleet: Fleet, tenant: Tenant) -> RequestError:
    """404, or 503 for one that has no worker now, and while it is not known yet what the fleet serves."""
    models = fleet.models()
    served = [name for name in models if tenant.may_call(name)]
    if model in models or not (models or fleet.knows_its_models):
        return no_worker_error(model[:256])
    return RequestError(
        f"model: {model[:64]!r} is not served here; served: {', '.join(served[:16])}",
        status=404,
        param="model",
        code="model_not_found",
    )
