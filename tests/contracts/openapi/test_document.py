"""The OpenAPI documents: what is published, what is served, what decoders take."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jsonschema_rs
import pytest

from warmfleet_contracts.openai.chat import chat_request
from warmfleet_contracts.openai.served_fields import NO_EFFECT
from warmfleet_contracts.openapi import openapi_document
from warmfleet_contracts.openapi.requests import traced
from warmfleet_router.app import build_router
from warmfleet_router.settings import RouterSettings
from warmfleet_runtime.http.app import SERVED_PATHS
from warmfleet_worker.server.app import build_app

PUBLISHED = Path(__file__).parents[3] / "docs/reference/openapi.json"


def test_the_published_document_is_the_routers():
    published = json.loads(PUBLISHED.read_text())

    assert published == openapi_document("router"), (
        "publish it: python -m warmfleet_contracts.openapi router > docs/reference/openapi.json"
    )


@pytest.mark.parametrize("server", ["router", "worker"])
def test_what_is_routed_is_described_and_what_is_described_is_routed(server):
    if server == "router":
        app = build_router(RouterSettings(endpoints=(), salt_key=b"k" * 32)).api.app
    else:
        app = build_app(SimpleNamespace(settings=SimpleNamespace(token=b"", uid="w"), events=None))
    routed = {
        (route.path.replace(":path}", "}"), method.lower())
        for route in app._app.routes
        for method in route.methods
        if method != "HEAD"
    }

    described = {
        (path, method)
        for path, operations in openapi_document(server)["paths"].items()
        for method in operations
    }

    assert routed == described, "operations stand in warmfleet_contracts/openapi/operations.py"


@pytest.mark.parametrize("server", ["router", "worker"])
def test_every_reference_leads_somewhere(server):
    document = openapi_document(server)
    operation_ids = {value for key, value in pairs(document["paths"]) if key == "operationId"}

    for key, value in pairs(document):
        if key == "$ref":
            found = document
            for part in value.removeprefix("#/").split("/"):
                found = found[part]
        if key == "links":
            assert all(link["operationId"] in operation_ids for link in value.values())


def pairs(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from pairs(inner)


def test_internal_parts_are_marked_and_public_ones_are_not():
    for server in ("router", "worker"):
        for path, operations in openapi_document(server)["paths"].items():
            is_internal = path.startswith(("/internal/", "/debug/"))
            assert all(operation.get("x-internal", False) == is_internal for operation in operations.values())
            assert not (is_internal and path in SERVED_PATHS)


def test_a_field_is_described_as_its_decoder_takes_it():
    fields = traced(chat_request, {"model": "m", "messages": [{"role": "user", "content": "x"}]})
    properties = openapi_document("router")["components"]["schemas"]["ChatRequest"]["properties"]

    assert set(properties) == {*fields.types, *fields.neutral, *fields.without_effect}
    assert properties["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert properties["temperature"]["default"] == 1.0
    assert None in properties["tools"]["enum"]
    assert all(properties[name] == {"description": "Accepted, no effect."} for name in NO_EFFECT)


def test_every_example_is_what_it_is_an_example_of():
    document = openapi_document("router")
    components = {"components": {"schemas": document["components"]["schemas"]}}

    for operations in document["paths"].values():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            for media in content.values():
                validator = jsonschema_rs.validator_for({**media["schema"], **components})
                for example in media["examples"].values():
                    validator.validate(example["value"])
