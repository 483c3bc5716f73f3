"""Endpoints from a file, which is followed: `warmfleet up` rewrites it when workers come and go."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint, vetted_endpoints
from warmfleet_router.errors import DiscoveryError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
POLL_SECONDS: Final = 0.5

_log = structlog.get_logger("warmfleet.router.discovery")


class _FileEndpoint(msgspec.Struct):
    uid: str
    url: str
    name: str = ""
    token: str = ""
    served_names: tuple[str, ...] = ()
    shared_cache: str = ""


class EndpointsFile:
    """The endpoints in a file, now and after each change of its content; `fixed` are there besides.

    A file that cannot be used leaves the last list in force.
    """

    def __init__(
        self, path: Path, fixed: Iterable[Endpoint] = (), *, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._path = path
        self._fixed = tuple(fixed)
        self._poll_seconds = poll_seconds
        self._errors = 0
        self._problem = ""

    @property
    def state(self) -> DiscoveryState:
        """`problem` is why the file as it is now is not in force."""
        return DiscoveryState(problem=self._problem, errors=self._errors)

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """The list now, and after each change."""
        last: bytes | None = None
        while True:
            try:
                content = await asyncio.to_thread(_content, self._path)
                if content != last:
                    last = content
                    listed = Discovered(vetted_endpoints([*self._fixed, *_decoded(content)]))
                    self._problem = ""
                    yield listed
            except DiscoveryError as error:
                self._refuse(str(error))
                if self._problem.startswith("cannot be read"):
                    last = None  # the same content may come back
            await asyncio.sleep(self._poll_seconds)

    def _refuse(self, problem: str) -> None:
        if problem != self._problem:
            self._errors += 1
            self._problem = problem
            _log.warning("endpoints file refused, the last list stays", path=str(self._path), reason=problem)


def read_endpoints(path: Path) -> list[Endpoint]:
    """The endpoints in a JSON file: a list of objects as `_FileEndpoint` has them.

    Raises:
        DiscoveryError: the file cannot be read, is not such a list, or an entry is unusable.
    """
    return _decoded(_content(path))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DiscoveryError(f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DiscoveryError(f"larger than {MAX_FILE_BYTES} bytes")
    return content


def _decoded(content: bytes) -> list[Endpoint]:
    try:
        entries = msgspec.json.decode(content, type=list[_FileEndpoint])
    except UNDECODABLE as error:
        raise DiscoveryError(str(error)) from error
    return [
        Endpoint(
            uid=entry.uid,
            name=entry.name or entry.uid,
            url=entry.url,
            served_names=entry.served_names,
            shared_cache=entry.shared_cache,
            token=entry.token.encode(),
        )
        for entry in entries
    ]
