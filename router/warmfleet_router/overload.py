"""What a client is told that cannot be served now, through no fault of its request."""

from warmfleet_contracts.openai import RequestError


def overloaded_error(text: str, retry_after_seconds: int) -> RequestError:
    """The fleet, or the router, has all it can take: 429, code `overloaded`."""
    return RequestError(
        text,
        status=429,
        type="rate_limit_error",
        code="overloaded",
        retry_after_seconds=retry_after_seconds,
    )


def quota_error(text: str, retry_after_seconds: int) -> RequestError:
    """The tenant has all that is its own; others may go on: 429, code `tenant_quota_exceeded`."""
    return RequestError(
        text,
        status=429,
        type="rate_limit_error",
        code="tenant_quota_exceeded",
        retry_after_seconds=retry_after_seconds,
    )


def draining_error() -> RequestError:
    """This router is about to end; another one serves."""
    return RequestError(
        "this router is shutting down",
        status=503,
        type="server_error",
        code="draining",
        retry_after_seconds=1,
    )
