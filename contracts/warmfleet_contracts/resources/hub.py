"""A Hugging Face hub as fetch, operator and `warmfleet up` ask it: paths, and what its answers mean.

Without an HTTP client, and without the resource's classes, so that a fetch starts without pydantic.
"""

import re
from typing import Annotated, Final
from urllib.parse import quote

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError

PUBLIC_HUB: Final = "https://huggingface.co"
DEFAULT_REVISION: Final = "main"
"""The branch that is meant where no revision is given; every repository of the hub has it."""
MAX_PAUSE_SECONDS: Final = 60.0
"""Of a hub's Retry-After, at most."""

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_FOUND: Final = {
    "RevisionNotFound": "{repository} has no {kind} {revision} (404)",
    "EntryNotFound": "{repository} lists a file that it does not have (404)",
}
"""By the hub's own code for what is missing."""
_NO_REPOSITORY: Final = (
    "there is no repository {repository} at {endpoint} (404); check spec.model.source.huggingFace.repository"
)
_NO_ACCESS: Final = (
    "access to {repository} is not granted (403); accept its terms on the hub with the account of the token "
    "in tokenSecretRef, or use another token"
)
_REFUSALS: Final = {
    (401, False): "{repository} is private, gated or misspelt (401 without a token); "
    "set spec.model.source.huggingFace.tokenSecretRef",
    (401, True): "the hub refused the token for {repository} (401); "
    "the Secret of tokenSecretRef must hold a valid one that may read it",
    (403, False): _NO_ACCESS,
    (403, True): _NO_ACCESS,
    (404, False): _NO_REPOSITORY,
    (404, True): _NO_REPOSITORY,
}
"""Advice to the user, by status and by whether a token was sent."""


class _Answer(msgspec.Struct):
    # Not `$`, which matches before a last newline, too.
    sha: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}\Z")]


def is_commit(revision: str) -> bool:
    """Whether it is a full commit hash, which never moves, and no branch or tag."""
    return _COMMIT.fullmatch(revision) is not None


def revision_path(repository: str, revision: str) -> str:
    """Path and query-free URL of what the hub knows about a revision; its slashes belong to its name."""
    return f"/api/models/{repository}/revision/{quote(revision, safe='')}"


def commit_in(body: bytes, endpoint: str) -> str:
    """The commit in the hub's answer for `revision_path`.

    Raises:
        ModelError: it is no such answer.
    """
    try:
        return msgspec.json.decode(body, type=_Answer).sha
    except UNDECODABLE as error:
        raise ModelError(f"{endpoint} does not answer like a Hugging Face hub: {error}") from error


def is_temporary(status: int) -> bool:
    """Whether the same request may be answered otherwise soon."""
    return status in _TEMPORARY


def pause_seconds(retry_after: str) -> float:
    """Seconds that a header Retry-After asks for, within bounds; 0 for none, and for a date."""
    return (
        min(float(retry_after), MAX_PAUSE_SECONDS) if retry_after.isascii() and retry_after.isdigit() else 0.0
    )


def refusal(
    status: int, code: str, *, endpoint: str, repository: str, revision: str, with_token: bool
) -> str:
    """What an answer that is not temporary means to the user.

    Args:
        status: of HTTP.
        code: the hub's own, from `x-error-code`.
        endpoint: base URL of the hub.
        repository: `owner/name`.
        revision: branch, tag or commit.
        with_token: whether a token was sent.
    """
    text = _REFUSALS.get((status, with_token), "the hub answered {status} for {repository}")
    if status == 404:
        text = _NOT_FOUND.get(code, text)
    kind = "commit" if is_commit(revision) else "branch, tag or commit"
    return text.format(repository=repository, endpoint=endpoint, status=status, revision=revision, kind=kind)
