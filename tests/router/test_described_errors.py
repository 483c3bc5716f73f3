"""The OpenAPI document has every status with which the router itself refuses a request."""

import pytest

from warmfleet_contracts.openapi import openapi_document
from warmfleet_router.error_responses import (
    fatal_request_error,
    no_worker_error,
    overloaded_error,
    quota_error,
    too_large_error,
)

REFUSALS = (
    fatal_request_error(2, 600.0),
    too_large_error(1),
    overloaded_error("full", 1),
    quota_error("over its share", 1),
    no_worker_error("chat"),
)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("status", sorted({refusal.status for refusal in REFUSALS}))
def test_a_status_of_the_router_is_described(path: str, status: int) -> None:
    assert str(status) in openapi_document("router")["paths"][path]["post"]["responses"]


def test_a_worker_is_described_without_what_only_a_router_answers() -> None:
    responses = openapi_document("worker")["paths"]["/v1/completions"]["post"]["responses"]

    assert not responses.keys() & {"422", "502"}
