"""What a container leaves behind when it ends, for `kubectl describe` and the operator."""

from contextlib import suppress
from pathlib import Path

from warmfleet_contracts.resources.model_fetch import MAX_TERMINATION_MESSAGE_BYTES


def write_termination_message(path: Path, text: str) -> None:
    """Write it to the pod's termination message. Outside a pod nobody made the file, and nothing happens."""
    with suppress(OSError):
        if path.exists():
            path.write_bytes(text.encode()[:MAX_TERMINATION_MESSAGE_BYTES])
