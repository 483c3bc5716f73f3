"""Endpoints from a file, which is followed: `warmfleet up` rewrites it when workers come and go.

The file is a JSON list of workers, or an object that also names the models: one that has no worker at the
moment is known, and requests for it are held if it may sleep.

    {"endpoints": [{"uid": "a", "url": "http://127.0.0.1:8100"}], "names": ["m"], "hold_seconds": {"m": 300}}
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint, vetted_endpoints
from warmfleet_router.errors import DiscoveryError

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
POLL_SECONDS: Final = 0.5
MAX_HOLD_SECONDS: Final = 86_400

_log = structlog.get_logger("warmfleet.router.discovery")


class _FileEndpoint(msgspec.Struct):
    uid: str
    url: str
    name: str = ""
    token: str = ""
    served_names: tuple[str, ...] = ()
    shared_cache: str = ""


class _File(msgspec.Struct):
    """As `Discovered`."""

    endpoints: tuple[_FileEndpoint, ...]
    names: tuple[str, ...] | None = None
    hold_seconds: dict[str, Annotated[float, msgspec.Meta(ge=0, le=MAX_HOLD_SECONDS)]] = {}


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
                    read = _decoded(content)
                    listed = replace(read, endpoints=vetted_endpoints([*self._fixed, *read.endpoints]))
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
    """The endpoints in a file.

    Raises:
        DiscoveryError: the file cannot be read, has another form, or an entry is unusable.
    """
    return list(_decoded(_content(path)).endpoints)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise DiscoveryError(f"cannot be read: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise DiscoveryError(f"larger than {MAX_FILE_BYTES} bytes")
    return content


def _decoded(content: bytes) -> Discovered:
    try:
        given = msgspec.json.decode(content, type=tuple[_FileEndpoint, ...] | _File)
    except UNDECODABLE as error:
        raise DiscoveryError(str(error)) from error
    file = given if isinstance(given, _File) else _File(given)
    unknown = file.hold_seconds.keys() - set(file.names or ())
    if unknown:
        raise DiscoveryError(f"hold_seconds: {min(unknown)!r} is none of the names")
    endpoints = tuple(
        Endpoint(
            uid=entry.uid,
            name=entry.name or entry.uid,
            url=entry.url,
            served_names=entry.served_names,
            shared_cache=entry.shared_cache,
            token=entry.token.encode(),
        )
        for entry in file.endpoints
    )
    return Discovered(endpoints, None if file.names is None else frozenset(file.names), file.hold_seconds)
