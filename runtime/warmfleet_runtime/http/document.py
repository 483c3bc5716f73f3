"""`/openapi.json`."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from warmfleet_contracts.openapi import openapi_document
from warmfleet_contracts.openapi.operations import Server

DOCUMENT_PATH = "/openapi.json"


def document_route(server: Server) -> Route:
    """Serves the OpenAPI document of `server`."""
    content = msgspec.json.encode(openapi_document(server))

    async def document(request: Request) -> Response:
        del request
        return Response(content, media_type="application/json")

    return Route(DOCUMENT_PATH, document, methods=["GET"])
