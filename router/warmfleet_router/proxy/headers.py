"""Which headers and fields of a request reach a worker, which of an answer a client, and what they state."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER, ROUTER_HEADER_PREFIX
from warmfleet_router.error_responses import header_number

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""RFC 9110, section 7.6.1, and what older proxies still send."""

ENDS_HERE: Final = frozenset(
    {
        b"authorization",  # the client's key ends at the router, in each header that may carry it
        b"x-api-key",
        b"api-key",
        b"cookie",
        b"host",
        b"content-length",  # the client library sets it for the body that is really sent
        b"content-encoding",
        b"accept-encoding",  # the router reads events, so workers must not compress
        b"expect",
        REQUEST_ID_HEADER.encode(),
    }
)

PASSED_BACK: Final = ("content-type", "cache-control", "x-accel-buffering", "retry-after")
"""The only headers of a worker that a client gets: all others are between router and worker."""

FIRST_ATTEMPTS: Final = {"x-stainless-retry-count": 0, "x-envoy-attempt-count": 1}
"""What these headers state of a request that was not sent before. OpenAI's client libraries send the one,
from 0 on; Envoy, where `include_request_attempt_count` is set, the other, from 1 on."""

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def request_headers(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """A client's headers without those that end at the router, and without any that only it may set."""
    listed = [(name.lower(), value) for name, value in raw]
    named_by_connection = {
        token.strip().lower()
        for name, value in listed
        if name == b"connection"
        for token in value.split(b",")
    }
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in listed
        if name not in HOP_BY_HOP
        and name not in ENDS_HERE
        and name not in named_by_connection
        and not name.startswith(ROUTER_HEADER_PREFIX)
    ]


def is_retry(headers: Mapping[str, str]) -> bool:
    """Whether a request states that it was sent before: by a client library, or by an Envoy on its way."""
    return any((header_number(headers.get(name)) or first) > first for name, first in FIRST_ATTEMPTS.items())


def passed_back(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """What a client gets of the headers of a worker's answer, byte for byte as the client library read it."""
    return [
        (name.encode(), value.encode("utf-8", "surrogateescape"))
        for name in PASSED_BACK
        if (value := headers.get(name)) is not None
    ]


def without_cache_salt(body: bytes) -> bytes:
    """The body without its `cache_salt`: the router has mixed that into the salt header.

    Every other field keeps its bytes. `body` is a JSON object that has been decoded before.
    """
    fields = _FIELDS.decode(body)
    if fields.pop("cache_salt", None) is None:
        return body
    return msgspec.json.encode(fields)
