"""How a fetch ends, as its container reports it to the operator: exit code and termination message.

Without the resource's classes, so that workers and their engines start without pydantic.
"""

import json
from enum import IntEnum
from typing import Final

FETCH_MODULE: Final = "warmfleet_worker.fetch"
TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"
MAX_TERMINATION_MESSAGE_BYTES: Final = 4096
"""What the kubelet keeps of it."""


class FetchExitCode(IntEnum):
    """Exit codes of a fetch. A retry after REFUSED would fail in the same way."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NO_SPACE = 4


def done_message(digest: str, size_bytes: int) -> str:
    """Termination message of a fetch that succeeded: digest and size of the model, for the operator."""
    return json.dumps({"digest": digest, "sizeBytes": size_bytes})


def fetched_model(message: str) -> tuple[str, int] | None:
    """Digest and bytes of the model out of a termination message; None if it is not a success's."""
    try:
        fetched = json.loads(message)
        return str(fetched["digest"])[:128], int(fetched["sizeBytes"])
    except (ValueError, KeyError, TypeError):
        return None  # a failure's sentence, or another version's
