"""What a client is told when no worker answered, or not to the end."""

from typing import Final

from warmfleet_contracts.openai import RequestError

RETRY_AFTER_SECONDS: Final = 1


def no_worker_error(model: str) -> RequestError:
    """No worker can take the request now; it may be tried again."""
    return RequestError(
        f"no replica of model {model!r} can answer at the moment",
        status=503,
        type="server_error",
        code="no_replica",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def broken_stream_error() -> RequestError:
    """The worker died in the middle of a stream."""
    return RequestError(
        "the replica that was answering is gone; the answer is incomplete",
        status=502,
        type="server_error",
        code="replica_lost",
    )


def too_large_error(limit_bytes: int) -> RequestError:
    """A plain answer does not fit into what is kept of it."""
    return RequestError(
        f"the answer exceeds the limit of {limit_bytes} bytes; ask for a stream",
        status=502,
        type="server_error",
        code="answer_too_large",
    )


def refusal_of(model: str, status: int, retry_after: str | None) -> RequestError:
    """What a client hears when every worker refused; a worker's own words stay inside."""
    seconds = header_number(retry_after) or RETRY_AFTER_SECONDS
    if status == 429:
        return RequestError(
            f"every replica of model {model!r} is overloaded",
            status=429,
            type="rate_limit_error",
            code="overloaded",
            retry_after_seconds=seconds,
        )
    error = no_worker_error(model)
    error.retry_after_seconds = seconds
    return error


def header_number(value: str | None) -> int | None:
    """An unsigned decimal; None for anything else."""
    if value is None or not (value.isascii() and value.isdecimal() and len(value) <= 20):
        return None
    return int(value)
