"""Where a fetched model lies and the flags that fetch it, as the operator writes them into pods and Jobs."""

import hashlib
import json
from typing import Final

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.names import MODEL_MOUNT_PATH
from warmfleet_contracts.resources.hub import is_commit
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
    """What to fetch, as flags of the fetch; empty for a source that needs none.

    Raises:
        ModelError: the revision is a branch or tag: `at_commit` comes first.
    """
    if source.catalog is not None:
        return ("--catalog", source.catalog.name)
    hub = source.hugging_face
    if hub is not None:
        if not is_commit(hub.asked_revision):
            raise ModelError(f"{hub.repository}@{hub.asked_revision} is not resolved to a commit")
        return ("--hugging-face", hub.repository, "--revision", hub.asked_revision)
    return ()


def is_fetched(source: ModelSource) -> bool:
    """Whether files are fetched; False for a volume or folder that holds them."""
    return source.catalog is not None or source.hugging_face is not None


def at_commit(source: ModelSource, commit: str) -> ModelSource:
    """A source on the hub with its branch or tag replaced by the commit that it was resolved to."""
    assert source.hugging_face is not None
    return source.model_copy(
        update={"hugging_face": source.hugging_face.model_copy(update={"revision": commit})}
    )


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
