"""The document, built from operations, request schemas and response schemas."""

from typing import Any, Final

from warmfleet_contracts.cache.worker_api import DECISION_HEADER, REQUEST_ID_HEADER
from warmfleet_contracts.openapi.operations import JSON, OPERATIONS, SSE, Operation, Server
from warmfleet_contracts.openapi.requests import Schema, request_schemas
from warmfleet_contracts.openapi.responses import response_schemas

API_VERSION: Final = "1"
"""Of the HTTP API, which is OpenAI's first; not of the software."""

_ERRORS: Final = {
    400: "A field is wrong or not served, or the body is no JSON; `param` and `code` give field and reason.",
    401: "No key, or a wrong one.",
    403: "The key does not allow this model, or this operation.",
    404: "No such model, or nothing is served on this path.",
    408: "The body did not arrive in time.",
    413: "The body exceeds 32 MiB.",
    422: (
        "Repeating it would not help: the engines of two replicas ended while they computed this request "
        "(`replicas_ended`), or the answer is too large to be sent as a whole (`answer_too_large`)."
    ),
    429: "Overloaded, or over the key's quota; `Retry-After` is the time to wait.",
    431: "Request line and headers exceed 64 KiB.",
    500: "The server failed.",
    503: "No replica can answer now; `Retry-After` is the time to wait.",
}
_OF_EVERY_OPERATION: Final = (431, 500)
_WITH_RETRY_AFTER: Final = frozenset({429, 503})


def openapi_document(server: Server) -> dict[str, Any]:
    """OpenAPI 3.1 of a router or a worker; a worker has no tenants, and operations for routers."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if server in operation.servers:
            paths.setdefault(operation.path, {})[operation.method] = _operation(operation, server)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"warmfleet {server}",
            "version": API_VERSION,
            "description": (
                "OpenAI's API as this server implements it. null means absent; unknown fields are ignored; a "
                "field that would change the answer and is not served is refused. Operations tagged "
                "`internal` are for our own processes and for operators, and may change with any version."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**response_schemas(), **request_schemas()}.items())),
            "headers": _HEADERS,
            "responses": {str(status): _error(status, text) for status, text in _ERRORS.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


_HEADERS: Final[Schema] = {
    "RequestId": {
        "description": "The request's own if it was well formed, otherwise a new one; it is in every log.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    },
    "Decision": {
        "description": "Opaque id of the routing decision.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    },
    "RetryAfter": {
        "description": "Seconds.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
}


def _operation(operation: Operation, server: Server) -> Schema:
    described: Schema = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        # A server without keys, or without a token, requires none.
        "security": [{}] if operation.is_open else [{"key": []}, {}],
        "responses": _responses(operation, server),
    }
    if operation.tag == "internal":
        described["x-internal"] = True
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body:
        described["requestBody"] = {
            "required": True,
            "content": {
                JSON: {
                    "schema": _reference("schemas", operation.body),
                    "examples": {name: {"value": value} for name, value in operation.examples},
                }
            },
        }
    return described


def _responses(operation: Operation, server: Server) -> Schema:
    headers = _headers(server)
    success: Schema = {"description": "Success.", "headers": headers}
    if operation.answers:
        success["content"] = {media: _media(media, component) for media, component in operation.answers}
    links = {name: link for name, link in operation.links if server == "router" or name != "decision"}
    if links:
        success["links"] = links
    responses = {operation.success: success}
    statuses = {*operation.errors, *_OF_EVERY_OPERATION}
    if server == "router":
        statuses |= {*operation.router_errors}
    if not operation.is_open:
        statuses |= {401, 403} if server == "router" else {401}  # a worker knows no tenants
    if "{" in operation.path:
        statuses |= {400}  # a name that cannot be printed
    for status in sorted(statuses):
        responses[str(status)] = _reference("responses", str(status))
    for status in operation.status_errors:
        responses[str(status)] = {**success, "description": "Not ready; `status` gives the reason."}
    return responses


def _headers(server: Server) -> Schema:
    headers = {REQUEST_ID_HEADER: _reference("headers", "RequestId")}
    if server == "router":
        headers[DECISION_HEADER] = _reference("headers", "Decision")
    return headers


def _media(media: str, component: str) -> Schema:
    if media == SSE:
        return {"schema": _event(component)}
    if component:
        return {"schema": _reference("schemas", component)}
    return {"schema": {"type": "object" if media == JSON else "string"}}


def _event(component: str) -> Schema:
    """One server-sent event: a chunk, an error that ends the answer, or the end."""
    chunk = {"anyOf": [_reference("schemas", component), _reference("schemas", "Error")]}
    data = {
        "anyOf": [
            {"type": "string", "contentMediaType": JSON, "contentSchema": chunk},
            {"const": "[DONE]"},
        ]
    }
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _error(status: int, text: str) -> Schema:
    headers = {REQUEST_ID_HEADER: _reference("headers", "RequestId")}
    if status in _WITH_RETRY_AFTER:
        headers["retry-after"] = _reference("headers", "RetryAfter")
    return {
        "description": text,
        "headers": headers,
        "content": {JSON: {"schema": _reference("schemas", "Error")}},
    }


def _reference(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}
