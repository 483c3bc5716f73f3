"""What operator and `python -m warmfleet_worker.fetch` agree on: a model's folder, flags, exit codes."""

import hashlib
import json
from enum import IntEnum
from typing import Final

from warmfleet_contracts.names import MODEL_MOUNT_PATH
from warmfleet_contracts.resources.model_spec import ModelSource

FETCH_MODULE: Final = "warmfleet_worker.fetch"
TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"
MAX_TERMINATION_MESSAGE_BYTES: Final = 4096
"""What the kubelet keeps of it."""

_NOT_IN_THE_KEY: Final = frozenset({"tokenSecretRef", "pullPolicy"})
"""How the files are reached does not change them."""


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


def source_key(source: ModelSource) -> str:
    """Where a model comes from, as 16 hexadecimal digits: the name of its folder below `/models`."""
    return _digest({name: _without_access(member) for name, member in _members(source).items()})[:16]


def fetch_key(source: ModelSource) -> str:
    """A source and how it is reached, as 8 hexadecimal digits: with another token a fetch starts anew."""
    return _digest(_members(source))[:8]


def model_folder(source: ModelSource) -> str:
    """The model's folder as containers see it."""
    return f"{MODEL_MOUNT_PATH}/{source_key(source)}"


def fetch_flags(source: ModelSource) -> tuple[str, ...]:
    """What to fetch, as flags of the fetch; empty for a source that needs none."""
    if source.catalog is not None:
        return ("--catalog", source.catalog.name)
    if source.hugging_face is not None:
        return (
            *("--hugging-face", source.hugging_face.repository),
            *("--revision", source.hugging_face.revision),
        )
    return ()


def _members(source: ModelSource) -> dict[str, dict[str, object]]:
    """The one member that is set, defaults left out so that a later default does not move a folder."""
    members: dict[str, dict[str, object]] = source.model_dump(
        mode="json", by_alias=True, exclude_none=True, exclude_defaults=True
    )
    return members


def _without_access(member: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in member.items() if name not in _NOT_IN_THE_KEY}


def _digest(value: object) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
