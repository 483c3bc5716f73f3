"""The one HTTP client towards workers. Why aiohttp: docs/decisions/0005-upstream-http-client.md.

No other module of the router knows the client. Faults are raised as `UpstreamError`s, by what they mean for a
retry, or as the errors that an `EventSource` promises.
"""

import asyncio
import io
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp
from aiohttp import http_parser

from warmfleet_contracts.cache.contract_versions import stated_versions
from warmfleet_contracts.cache.worker_api import (
    KV_EVENTS_PATH,
    NONCE_HEADER,
    UID_HEADER,
    VERSIONS_HEADER,
)
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.body_relay import BodyReceiver, BodyRelay
from warmfleet_router.workers.liveness import LivenessSettings, LivenessWatch, ResponseKind

Headers = Sequence[tuple[str, str]]

CONNECT_SECONDS: Final = 3.0
INLINE_BODY_BYTES: Final = 512 * 1024
PROBE_AFTER_SECONDS: Final = 10
PROBE_EVERY_SECONDS: Final = 5
PROBES: Final = 3
"""A node that vanishes without closing its connections is noticed after 25 s, even during a long prefill."""
SILENT_SECONDS: Final = PROBE_AFTER_SECONDS + PROBES * PROBE_EVERY_SECONDS
"""So long may a worker take nothing of a request. The kernel of one that is stopped answers probes, and a
closed connection would keep the rest of its request in memory until the worker goes on."""
READ_BYTES: Final = 64 * 1024
"""What is read ahead of a slow client, per stream; the library stops reading at twice as much."""


class SlowClientLibraryError(WarmfleetError):
    """The client library runs without its C extension."""


class UpstreamError(WarmfleetError):
    """A worker did not answer as it should. The text holds no address."""

    def __init__(self, reason: str, *, is_silent: bool = False, is_down: bool = False) -> None:
        """`is_silent`: nothing arrived, not even a refusal or the end of the connection.

        `is_down`: the connection was refused, so that nothing was sent.
        """
        super().__init__(reason)
        self.is_silent = is_silent
        self.is_down = is_down


class UpstreamUnreachableError(UpstreamError):
    """No connection, or it broke before the response headers."""


class UpstreamBrokenError(UpstreamError):
    """The connection broke, or fell silent, in the middle of the answer."""


class UpstreamTooLargeError(UpstreamError):
    """An answer exceeds the bound its reader set."""


def require_fast_parser() -> None:
    """Refuse a client library that parses answers in Python.

    That one is many times slower, and the more lenient of the two: which of them reads an answer must not
    depend on how a package was built.

    Raises:
        SlowClientLibraryError: the C extension is not there, or switched off.
    """
    if http_parser.HttpResponseParser is http_parser.HttpResponseParserPy:
        raise SlowClientLibraryError(
            f"aiohttp {aiohttp.__version__} has no C extension here: install a wheel of it for this platform "
            "and leave AIOHTTP_NO_EXTENSIONS unset"
        )


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """Status and headers of a worker's answer; the body is read as it comes."""

    status: int
    headers: Mapping[str, str]
    """Case-insensitive."""
    _response: aiohttp.ClientResponse
    _liveness: LivenessWatch
    _uid: str
    _kind: ResponseKind

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, cut anywhere.

        Raises:
            UpstreamBrokenError: the worker died or fell silent.
        """
        content = self._response.content
        with self._liveness.body(self._uid, self._kind, partial(_fail_read, content)) as read:
            try:
                while True:
                    # Only reading counts: while a slow client holds us up, the silence is ours.
                    read.begin()
                    chunk = await content.readany()
                    read.end()
                    if not chunk:
                        return
                    yield chunk
            except (aiohttp.ClientError, OSError) as error:
                raise UpstreamBrokenError(_reason(error)) from error

    async def relay(self, receiver: BodyReceiver) -> None:
        """Pass the rest of the body to `receiver` as it arrives, cut anywhere, to its end.

        Raises:
            UpstreamBrokenError: the worker died or fell silent.
            Exception: what `receiver` raised.
        """
        relay = BodyRelay(self._response, receiver)
        with self._liveness.body(self._uid, self._kind, partial(relay.fail, _silent())) as read:
            try:
                await relay.run(read)
            except (aiohttp.ClientError, OSError) as error:
                raise UpstreamBrokenError(_reason(error)) from error
            finally:
                relay.close()

    async def body(self, limit_bytes: int) -> bytes:
        """The whole body.

        Raises:
            UpstreamTooLargeError: it exceeds `limit_bytes`.
            UpstreamBrokenError: the worker died or fell silent.
        """
        content = bytearray()
        async for chunk in self.chunks():
            content += chunk
            if len(content) > limit_bytes:
                raise UpstreamTooLargeError(f"the answer exceeds {limit_bytes} bytes")
        return bytes(content)


class Upstream:
    """Connections to all workers: requests, and event streams as an `EventSource`.

    Open with `start`, close with `stop`, inside one event loop.
    """

    def __init__(
        self, *, connect_seconds: float = CONNECT_SECONDS, liveness: LivenessWatch | None = None
    ) -> None:
        """Without `liveness` no read from a silent worker is ended."""
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds)
        self._liveness = liveness if liveness is not None else unwatched()
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        # Leases bound the work, so the pool does not; a DNS name is looked up again after a while.
        connector = aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=10, keepalive_timeout=30, socket_factory=_probed_socket
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=READ_BYTES,
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept", "Content-Type"),
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def request(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        wait_seconds: float | None = None,
        kind: ResponseKind = ResponseKind.SHORT,
    ) -> AsyncGenerator[UpstreamResponse, None]:
        """Send a request with the worker's token; leaving the block early closes the connection.

        `wait_seconds` bounds the wait for the response headers; None waits until the
        worker answers or dies, because it answers only when it has admitted the request.

        Raises:
            UpstreamUnreachableError: before the response headers.
        """
        deadline = asyncio.timeout(wait_seconds)
        # The hello proves more than this header, and a worker that refuses the header could not send it.
        addressed = [] if kind is ResponseKind.EVENTS else [(UID_HEADER, endpoint.uid)]
        with self._liveness.headers(endpoint.uid, kind, lambda: _expire(deadline)):
            response = await self._open(
                endpoint, method, path, headers=[*addressed, *headers], body=body, deadline=deadline
            )
        try:
            yield UpstreamResponse(
                response.status, response.headers, response, self._liveness, endpoint.uid, kind
            )
        finally:
            # Returns a finished connection to the pool and closes any other: that cancels the request.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    async def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes, versions: AbstractSet[int]
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of a worker's event stream (the `EventSource` of `event_stream`); the caller keeps deadlines.

        Raises:
            StreamUnavailableError: the worker cannot be reached, refuses, or the transport broke.
        """
        path = f"{KV_EVENTS_PATH}?epoch={epoch}&after={after}" if epoch else KV_EVENTS_PATH
        headers = [(NONCE_HEADER, nonce.hex()), (VERSIONS_HEADER, stated_versions(versions))]
        try:
            async with self.request(
                endpoint, "GET", path, headers=headers, kind=ResponseKind.EVENTS
            ) as response:
                if response.status != 200:
                    raise StreamUnavailableError(f"the event stream was refused with {response.status}")
                async for chunk in response.chunks():
                    yield chunk
        except UpstreamError as error:
            raise StreamUnavailableError(
                str(error), is_silent=error.is_silent, is_down=error.is_down
            ) from error

    async def _open(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        headers: Headers,
        body: bytes,
        deadline: asyncio.Timeout,
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise UpstreamUnreachableError("the router is shutting down")
        sent = list(headers)
        if endpoint.token:
            sent.append(("Authorization", f"Bearer {endpoint.token.decode('latin-1')}"))
        opening = self._session.request(
            method,
            endpoint.url.rstrip("/") + path,
            headers=sent,
            # aiohttp sends a stream in pieces, so that one long prompt does not hold up every live answer.
            data=io.BytesIO(body) if len(body) > INLINE_BODY_BYTES else body or None,
            timeout=self._timeout,
            allow_redirects=False,
        )
        try:
            async with deadline:
                response = await opening
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise UpstreamUnreachableError(
                _reason(error),
                is_silent=isinstance(error, TimeoutError),
                is_down=isinstance(error, aiohttp.ClientConnectorError),
            ) from error
        return response


def _probed_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket whose kernel probes a silent peer."""
    family, kind, protocol = address[:3]
    probed = socket.socket(family, kind, protocol)
    probed.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):  # Linux; elsewhere the system's own times hold
        probed.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        probed.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_SECONDS)
        probed.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        probed.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)
    return probed


def unwatched() -> LivenessWatch:
    """A watch that is never swept."""
    return LivenessWatch(LivenessSettings())


def _fail_read(content: aiohttp.StreamReader) -> None:
    """End a read from a silent worker. Knows the stream only: a method of its owner would be a cycle."""
    content.set_exception(_silent())


def _silent() -> UpstreamBrokenError:
    return UpstreamBrokenError("the worker fell silent", is_silent=True)


def _expire(deadline: asyncio.Timeout) -> None:
    if not deadline.expired():
        deadline.reschedule(asyncio.get_running_loop().time())


def _reason(error: BaseException) -> str:
    """Why, without the address that aiohttp's own texts carry."""
    if isinstance(error, TimeoutError):
        return "the worker did not answer in time"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "the worker refused the connection"
    return "the worker closed the connection"
