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
from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.hub import (
    commit_in,
    is_temporary,
    pause_seconds,
    refusal,
    revision_path,
)
from warmfleet_worker.model_store.fetch.errors import FetchError, RefusedError
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.selection import HubFile

MAX_LISTING_BYTES: Final = 16 * 2**20
MAX_ATTEMPTS: Final = 5
"""Attempts of one request in a row without a byte received."""

_Result = TypeVar("_Result")

_TIMEOUT: Final = httpx.Timeout(30.0, connect=15.0)
_MAX_REDIRECTS: Final = 5
_LISTED_NAME_LENGTH: Final = 1024


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
    """One repository at one commit, or at a branch or tag to ask for its commit. Use as a context manager."""

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
        body = self._about_revision(blobs="true")
        try:
            listing = msgspec.json.decode(body, type=_Listing)
        except UNDECODABLE as error:
            raise FetchError(f"{self._endpoint} does not answer like a Hugging Face hub: {error}") from error
        if listing.sha != self._revision:
            raise FetchError(f"the hub answered for the commit {listing.sha[:40]!r}: not used")
        return {file.name: file for file in map(_hub_file, listing.siblings) if file is not None}

    def commit(self) -> str:
        """The commit that the revision, a branch or tag, is now; raises as `listing`."""
        try:
            return commit_in(self._about_revision(), self._endpoint)
        except FetchError:
            raise
        except ModelError as error:
            raise FetchError(str(error)) from error

    def _about_revision(self, **query: str) -> bytes:
        with self._get(revision_path(self._repository, self._revision), params=query) as response:
            body = bytearray()
            for piece in _pieces(response):
                body += piece
                if len(body) > MAX_LISTING_BYTES:
                    raise FetchError(f"the hub's listing is larger than {MAX_LISTING_BYTES} bytes")
        return bytes(body)

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
        status = response.status_code
        if is_temporary(status):
            pause = pause_seconds(response.headers.get("retry-after", ""))
            return TransientError(f"the hub answered {status}", pause)
        text = refusal(
            status,
            response.headers.get("x-error-code", ""),
            endpoint=self._endpoint,
            repository=self._repository,
            revision=self._revision,
            with_token=self._has_token,
        )
        return RefusedError(text)


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


def _hub_file(sibling: _Sibling) -> HubFile | None:
    if sibling.lfs is not None:
        return HubFile(name=sibling.rfilename, size_bytes=sibling.lfs.size, sha256=sibling.lfs.sha256)
    if sibling.size is None:
        return None
    return HubFile(name=sibling.rfilename, size_bytes=sibling.size, git_sha1=sibling.blobId or "")
