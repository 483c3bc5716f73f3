"""Errors for requests that are not answered, through no fault of the client."""

import re
from typing import Final

from warmfleet_contracts.openai import RequestError

RETRY_AFTER_SECONDS: Final = 1
MOST_TOKENS: Final = 2**32
"""Of one request, over all its prompts and choices: sums of any number of requests fit every encoding."""
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def no_worker_error(model: str, retry_after_seconds: int = RETRY_AFTER_SECONDS) -> RequestError:
    """No worker can take the request now; it may be tried again."""
    text = f"no replica of model {model!r} can answer at the moment"
    return _failure(text, 503, "no_replica", retry_after_seconds)


def asleep_error(model: str, reason: str, missing: str, retry_after_seconds: int) -> RequestError:
    """A model that sleeps did not wake for a request; `missing` is what it lacks to answer."""
    return _failure(f"model {model!r} {reason}: {missing}", 503, "no_replica", retry_after_seconds)


def other_owner_error(model: str) -> RequestError:
    """The name of a model that slept went to another deployment while a request was held for it."""
    return _failure(f"model {model!r} is another deployment's by now", 503, "no_replica", RETRY_AFTER_SECONDS)


def broken_stream_error() -> RequestError:
    """The worker died in the middle of a stream."""
    text = "the replica that was answering is gone; the answer is incomplete"
    return _failure(text, 502, "replica_lost")


def fatal_request_error(engines: int, refused_seconds: float) -> RequestError:
    """Engines ended while they computed the request; a status that client libraries do not retry."""
    text = (
        f"{engines} replicas ended while they computed this request; it is refused until "
        f"{refused_seconds:g} seconds have passed since"
    )
    return _failure(text, 422, "replicas_ended")


def too_large_error(limit_bytes: int) -> RequestError:
    """A plain answer does not fit into what is kept of it; a status that client libraries do not retry."""
    text = f"the answer exceeds the limit of {limit_bytes} bytes; ask for a stream"
    return _failure(text, 422, "answer_too_large")


def overloaded_error(text: str, retry_after_seconds: int) -> RequestError:
    """The fleet, or the router, is full."""
    return _limit(text, "overloaded", retry_after_seconds)


def quota_error(text: str, retry_after_seconds: int) -> RequestError:
    """The tenant has reached its limit; other tenants may go on."""
    return _limit(text, "tenant_quota_exceeded", retry_after_seconds)


def worker_refusal_error(model: str, status: int, retry_after: str | None) -> RequestError:
    """Every worker refused; the client gets none of a worker's own text."""
    seconds = header_number(retry_after) or RETRY_AFTER_SECONDS
    if status == 429:
        return overloaded_error(f"every replica of model {model!r} is overloaded", seconds)
    return no_worker_error(model, seconds)


def header_number(value: str | None) -> int | None:
    """An unsigned decimal of at most 15 digits; None for anything else."""
    if value is None or not (value.isascii() and value.isdecimal() and len(value) <= 15):
        return None
    return int(value)


def header_tokens(value: str | None) -> int | None:
    """The number of tokens that one request may have; None for anything else."""
    tokens = header_number(value)
    return tokens if tokens is not None and tokens <= MOST_TOKENS else None


def header_text(value: str | None) -> str | None:
    """The first 128 characters of printable ASCII; None for anything else."""
    text = (value or "")[:128]
    return text if text and text.isascii() and text.isprintable() else None


def header_seconds(value: str | None) -> float | None:
    """An unsigned decimal fraction; None for anything else."""
    return float(value) if value is not None and _SECONDS.fullmatch(value) else None


def _failure(text: str, status: int, code: str, retry_after_seconds: int | None = None) -> RequestError:
    return RequestError(
        text, status=status, type="server_error", code=code, retry_after_seconds=retry_after_seconds
    )


def _limit(text: str, code: str, retry_after_seconds: int) -> RequestError:
    return RequestError(
        text, status=429, type="rate_limit_error", code=code, retry_after_seconds=retry_after_seconds
    )
