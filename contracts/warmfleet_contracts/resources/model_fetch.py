"""Where a fetched model lies and the flags that fetch it, as the operator writes them into pods and Jobs."""

import hashlib
import json
from typing import Final

from warmfleet_contracts.names import MODEL_MOUNT_PATH
from warmfleet_contracts.resources.model_spec import ModelSource

_NOT_IN_THE_KEY: Final = frozenset({"tokenSecretRef", "pullPolicy"})
"""How the files are reached does not change them."""


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
