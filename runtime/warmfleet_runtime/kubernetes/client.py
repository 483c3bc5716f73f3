"""Requests to one API server: JSON in and out, with bounds on time and size."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import aiohttp
import msgspec

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_runtime.kubernetes.config import ClientConfig, client_config
from warmfleet_runtime.kubernetes.decoding import decoded
from warmfleet_runtime.kubernetes.errors import ApiServerError, ConfigError, UnreadableError
from warmfleet_runtime.kubernetes.media_types import JSON

Json = dict[str, Any]

REQUEST_SECONDS: Final = 30.0
CONNECT_SECONDS: Final = 5.0
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Of a watch. Objects end at 1.5 MiB, by etcd's limit for a request."""
MAX_MESSAGE_LENGTH: Final = 1024
_MAX_ERROR_BYTES: Final = 64 * 1024
_READ_BUFFER_BYTES: Final = 2 * 1024 * 1024


class KubernetesClient:
    """One API server, asked as one identity. All methods raise `ApiServerError`.

        async with KubernetesClient.connect(kubeconfig, user_agent="example") as client:
            node = await client.get("/api/v1/nodes/node-0")
            await client.patch("/api/v1/nodes/node-0", {"spec": {"unschedulable": True}}, MERGE_PATCH)

    Use an `Informer` for objects that are to be followed.
    """

    def __init__(self, config: ClientConfig, session: aiohttp.ClientSession) -> None:
        self.config: Final = config
        self._session = session

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path | None, *, user_agent: str) -> AsyncGenerator[Self, None]:
        """A client that is closed at the end.

        Args:
            kubeconfig: its current context is used; None: the service account of this pod.
            user_agent: the name of this process in the API server's audit log.

        Raises:
            ConfigError: there is no usable configuration.
        """
        async with client_config(kubeconfig) as config:
            try:
                tls = config.tls()
            except (OSError, ValueError) as error:
                raise ConfigError("the cluster's certificates cannot be used", message=str(error)) from error
            async with aiohttp.ClientSession(
                # Without a limit: every watch keeps a connection.
                connector=aiohttp.TCPConnector(ssl=tls, limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                headers={"User-Agent": user_agent},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BUFFER_BYTES,
                # A proxy for model downloads is none for the API server.
                trust_env=False,
                trace_configs=[_before_send_trace()],
            ) as session:
                yield cls(config, session)

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        """One object, or a list."""
        return await self.request("GET", path, query=query)

    async def post(self, path: str, body: Mapping[str, Any]) -> Json:
        """Create an object in the collection at `path`."""
        return await self.request("POST", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str) -> Json:
        """Change an object; `content_type` is one of the patches in `media_types`."""
        return await self.request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, path: str, options: Mapping[str, Any] | None = None) -> Json:
        """Delete an object; `options` are DeleteOptions."""
        return await self.request("DELETE", path, body=options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        timeout_seconds: float = REQUEST_SECONDS,
        before_send: Callable[[], None] | None = None,
    ) -> Json:
        """The object in a 2xx response.

        Args:
            method: of HTTP.
            path: below the server's URL, such as `/api/v1/pods`.
            query: of the URL.
            body: sent as JSON.
            content_type: of `body`.
            timeout_seconds: from the call to the end of the response.
            before_send: called when the bytes of a request with a body are about to leave. It refuses by
                raising a WarmfleetError, which this method then raises; nothing has been sent.
        """
        content = await self._bytes(
            method,
            path,
            query,
            body=body,
            content_type=content_type,
            timeout_seconds=timeout_seconds,
            before_send=before_send,
        )
        return decoded(content or b"{}", Json)

    async def read(self, path: str, query: Mapping[str, str], *, accept: str = JSON) -> bytes:
        """The body of a 2xx response to GET, for callers that decode it themselves."""
        return await self._bytes("GET", path, query, accept=accept)

    async def lines(
        self, path: str, query: Mapping[str, str], silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """An empty line once the response has begun, then the lines of its body until it ends.

        Raises:
            ApiServerError: no 2xx, the connection broke, or nothing came for `silence_seconds`.
        """
        rest = b""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    response = await stack.enter_async_context(self._response("GET", path, query))
                yield b""
                while True:
                    async with asyncio.timeout(silence_seconds):
                        data = await response.content.readany()
                    if not data:
                        return
                    *whole, rest = (rest + data).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:
                        raise ApiServerError(f"sends a line of more than {MAX_LINE_BYTES} bytes")
                    for line in whole:
                        if line:
                            yield line
            except TimeoutError as error:
                raise ApiServerError("has fallen silent") from error

    async def _bytes(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        timeout_seconds: float = REQUEST_SECONDS,
        **request: Any,
    ) -> bytes:
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._response(method, path, query, **request) as response,
            ):
                return await _bounded(response, MAX_BODY_BYTES)
        except TimeoutError as error:
            raise ApiServerError(f"no answer within {timeout_seconds:g} s") from error

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        before_send: Callable[[], None] | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A 2xx whose body has not been read; the connection is given back at the end, read or not."""
        assert before_send is None or body is not None, "without a body nothing calls before_send"
        headers = {"Accept": accept}
        authorization = await self.config.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._session.request(
                method,
                self.config.server + path,
                params=query,
                data=None if body is None else json.dumps(body).encode(),
                headers=headers,
                allow_redirects=False,
                proxy=self.config.proxy_url,
                server_hostname=self.config.tls_server_name,
                trace_request_ctx=before_send,
            ) as response:
                if not 200 <= response.status < 300:
                    raise await _error_of(response)
                yield response
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error.__cause__, WarmfleetError):  # before_send refused
                raise error.__cause__ from None
            raise ApiServerError("cannot be reached", message=str(error) or type(error).__name__) from error


def _before_send_trace() -> aiohttp.TraceConfig:
    async def on_chunk(session: object, context: SimpleNamespace, parameters: object) -> None:
        del session, parameters
        if context.trace_request_ctx is not None:
            context.trace_request_ctx()

    trace = aiohttp.TraceConfig()
    # Headers leave together with the body. No earlier moment would do: between connecting and the first bytes
    # the event loop runs other tasks.
    trace.on_request_chunk_sent.append(on_chunk)
    return trace


async def _bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    pieces, size = [], 0
    while piece := await response.content.read(_READ_BUFFER_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > limit_bytes:
            raise ApiServerError(f"answers more than {limit_bytes} bytes")
    return b"".join(pieces)


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""


async def _error_of(response: aiohttp.ClientResponse) -> ApiServerError:
    content = await response.content.read(_MAX_ERROR_BYTES)
    try:
        status = decoded(content or b"{}", _Status)
    except UnreadableError:  # a proxy's error page
        status = _Status(content.decode("utf-8", "replace"))
    retry_after = response.headers.get("Retry-After", "")
    return ApiServerError(
        f"answers {response.status}",
        message=status.message[:MAX_MESSAGE_LENGTH],
        status=response.status,
        reason=status.reason,
        retry_after_seconds=float(retry_after) if retry_after.isdecimal() else None,
    )
