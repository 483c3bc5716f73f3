"""The termination message of a container, shown by `kubectl describe` and read by the operator."""

from contextlib import suppress
from pathlib import Path

from warmfleet_contracts.resources.fetch_outcome import MAX_TERMINATION_MESSAGE_BYTES


def write_termination_message(path: Path, text: str) -> None:
    """Write `text` to the termination message file, if it exists: outside a pod it does not."""
    with suppress(OSError):
        if path.exists():
            path.write_bytes(text.encode()[:MAX_TERMINATION_MESSAGE_BYTES])
