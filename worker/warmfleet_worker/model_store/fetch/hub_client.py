"""The Hugging Face hub over HTTP: the files of a commit, and their content from any byte on.

The token goes to the endpoint alone: httpx drops it when a redirect leads to another origin, as to the hub's
content network.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Annotated, Any, Final, Self, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_worker.model_store.fetch.errors import FetchError, RefusedError
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.selection import HubFile

MAX_LISTING_BYTES: Final = 16 * 2**20
MAX_ATTEMPTS: Final = 5
"""Attempts of one request in a row without a byte received."""

_Result = TypeVar("_Result")

_TIMEOUT: Final = httpx.Timeout(30.0, connect=15.0)
_MAX_REDIRECTS: Final = 5
_MAX_PAUSE_SECONDS: Final = 60.0
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_LISTED_NAME_LENGTH: Final = 1024

_NOT_FOUND: Final = {
    "RevisionNotFound": "{repository} has no commit {revision} (404)",
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
    (401, "no token"): "{repository} is private, gated or misspelt (401 without a token); "
    "set spec.model.source.huggingFace.tokenSecretRef",
    (401, "token"): "the hub refused the token for {repository} (401); "
    "the Secret of tokenSecretRef must hold a valid one that may read it",
    (403, "no token"): _NO_ACCESS,
    (403, "token"): _NO_ACCESS,
    (404, "no token"): _NO_REPOSITORY,
    (404, "token"): _NO_REPOSITORY,
}
"""Advice to the user, by status and by whether a token was sent."""


class _Lfs(msgspec.Struct):
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, msgspec.Meta(ge=0)]


class _Sibling(msgspec.Struct):
    rfilename: Annotated[str, msgspec.Meta(max_length=_LISTED_NAME_LENGTH)]
    size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    blobId: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")] | None = None  # noqa: N815 - the hub's name
    lfs: _Lfs | None = None


class _Listing(msgspec.Struct):
    siblings: list[_Sibling]
    sha: str = ""


class TransientError(FetchError):
    """A request failed with an error that is often temporary. `pause_seconds`: the server's Retry-After."""

    def __init__(self, text: str, pause_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.pause_seconds = pause_seconds


class HubClient:
    """One repository at one commit. Use as a context manager."""

    def __init__(self, endpoint: str, repository: str, revision: str, token: str) -> None:
        self._endpoint, self._repository, self._revision = endpoint, repository, revision
        self._has_token = bool(token)
        headers = {"User-Agent": "warmfleet"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            headers=headers, timeout=_TIMEOUT, follow_redirects=True, max_redirects=_MAX_REDIRECTS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self._http.close()

    def listing(self) -> dict[str, HubFile]:
        """Files of the commit, by name.

        Raises:
            RefusedError: no such repository or commit, or no access to it.
            TransientError: try again.
            FetchError: the answer is not a listing.
        """
        path = f"/api/models/{self._repository}/revision/{self._revision}"
        with self._get(path, params={"blobs": "true"}) as response:
            body = bytearray()
            for piece in _pieces(response):
                body += piece
                if len(body) > MAX_LISTING_BYTES:
                    raise FetchError(f"the hub's listing is larger than {MAX_LISTING_BYTES} bytes")
        try:
            listing = msgspec.json.decode(bytes(body), type=_Listing)
        except UNDECODABLE as error:
            raise FetchError(f"{self._endpoint} does not answer like a Hugging Face hub: {error}") from error
        if listing.sha != self._revision:
            raise FetchError(f"the hub answered for the commit {listing.sha[:40]!r}: not used")
        return {file.name: file for file in map(_hub_file, listing.siblings) if file is not None}

    @contextmanager
    def content(self, file: HubFile, first_byte: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A file's content: its first byte (0 if the server ignores ranges), and the pieces.

        Raises:
            RefusedError, TransientError: as for `listing`.
        """
        path = f"/{self._repository}/resolve/{self._revision}/{quote(file.name)}"
        # No compression: ranges and sizes are those of the file.
        headers = {"Accept-Encoding": "identity"}
        if first_byte:
            headers["Range"] = f"bytes={first_byte}-"
        with self._get(path, headers=headers) as response:
            yield _first_byte(response, first_byte), _pieces(response)

    @contextmanager
    def _get(self, path: str, **options: Any) -> Iterator[httpx.Response]:
        try:
            with self._http.stream("GET", self._endpoint + path, **options) as response:
                if not response.is_success:
                    raise self._refusal(response)
                yield response
        except httpx.TooManyRedirects as error:
            raise RefusedError(f"{self._endpoint} redirects more than {_MAX_REDIRECTS} times") from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise RefusedError(f"the hub's address {self._endpoint!r} is not usable: {error}") from error
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise TransientError(f"{self._endpoint} cannot be reached: {reason}") from error

    def _refusal(self, response: httpx.Response) -> FetchError:
        status, repository = response.status_code, self._repository
        code = response.headers.get("x-error-code", "")
        if status in _RETRIED:
            return TransientError(f"the hub answered {status}", _pause_seconds(response))
        gone = _NOT_FOUND.get(code)
        if status == 404 and gone is not None:
            return RefusedError(gone.format(repository=repository, revision=self._revision))
        credential = "token" if self._has_token else "no token"
        text = _REFUSALS.get((status, credential), "the hub answered {status} for {repository}")
        return RefusedError(text.format(repository=repository, endpoint=self._endpoint, status=status))


def retried(attempt: Callable[[], _Result], progress: Progress) -> _Result:
    """The result of `attempt`, retried with exponential backoff on temporary errors.

    Raises:
        FetchError: the last attempt failed, too, or the error is not temporary.
    """
    for failures in range(1, MAX_ATTEMPTS + 1):
        try:
            return attempt()
        except TransientError as error:
            if failures == MAX_ATTEMPTS:
                raise
            pause = max(error.pause_seconds, 2 ** (failures - 1) * random.uniform(0.5, 1.0))  # noqa: S311
            progress.report("trying again", reason=str(error), pause_seconds=round(pause, 1))
            progress.sleep(pause)
    raise AssertionError


def _pieces(response: httpx.Response) -> Iterator[bytes]:
    """Pieces as they arrive: those received are kept, even if the connection breaks later."""
    try:
        yield from response.iter_bytes()
    except httpx.DecodingError as error:
        raise TransientError(f"the hub's answer cannot be decoded: {error}") from error


def _first_byte(response: httpx.Response, asked: int) -> int:
    """The byte of the file at which a body begins; a server may ignore `Range`.

    Raises:
        TransientError: the body has another range.
    """
    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
        return 0
    content_range = response.headers.get("content-range", "")
    if not content_range.startswith(f"bytes {asked}-"):
        raise TransientError(f"the hub sent another part than asked for: {content_range[:100]!r}")
    return asked


def _pause_seconds(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    return min(float(text), _MAX_PAUSE_SECONDS) if text.isascii() and text.isdigit() else 0.0


def _hub_file(sibling: _Sibling) -> HubFile | None:
    if sibling.lfs is not None:
        return HubFile(name=sibling.rfilename, size_bytes=sibling.lfs.size, sha256=sibling.lfs.sha256)
    if sibling.size is None:
        return None
    return HubFile(name=sibling.rfilename, size_bytes=sibling.size, git_sha1=sibling.blobId or "")
