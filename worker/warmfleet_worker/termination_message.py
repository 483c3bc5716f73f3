"""The termination message of a container, shown by `kubectl describe` and read by the operator."""

from contextlib import suppress
from pathlib import Path

import structlog

from warmfleet_contracts.resources.fetch_outcome import MAX_TERMINATION_MESSAGE_BYTES

log = structlog.get_logger("warmfleet.worker")


def write_termination_message(path: Path, text: str) -> None:
    """Write `text` to the termination message file, if it exists: outside a pod it does not."""
    with suppress(OSError):
        if path.exists():
            path.write_bytes(text.encode()[:MAX_TERMINATION_MESSAGE_BYTES])


def report_refusal(path: Path, model: Path, reason: str) -> None:
    """Log why this model cannot be served, and leave it as the termination message."""
    log.error("cannot serve this model", model=str(model), reason=reason)
    write_termination_message(path, f"cannot serve this model: {reason}")
