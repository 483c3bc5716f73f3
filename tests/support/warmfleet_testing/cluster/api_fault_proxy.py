"""An HTTPS proxy with faults in front of an API server: what load, upgrades and old versions answer.

It ends TLS with a certificate of its own and speaks to the API server by the client certificate of a
kubeconfig, so its clients need no credentials: it listens on loopback, for one test. It runs in a
thread; `faults` may be changed at any time, and is asked for every request.
"""

import asyncio
import base64
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, Literal
from weakref import WeakSet

import aiohttp
import yaml
from aiohttp import web

from warmfleet_devcluster.control_plane.certificates import CertificateAuthority

Verb = Literal["get", "list", "watch", "create", "update", "patch", "delete"]

WRITES: Final[frozenset[Verb]] = frozenset({"create", "update", "patch", "delete"})
READS: Final[frozenset[Verb]] = frozenset({"get", "list", "watch"})
READY_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_CLOSE_SECONDS: Final = 0.25
"""Connections with TLS close a moment after they are closed."""
_HOP_BY_HOP: Final = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiFault:
    """What goes wrong with some requests."""

    verbs: frozenset[Verb]
    status: int = 0
    """Answered instead of the API server's response; 0 resets the connection."""
    ratio: float = 1.0
    """Of the requests that it is about, so many are hit, at random."""
    at_most: int = 1_000_000
    """Hits; then it is over."""
    after: bool = False
    """The API server carries the request out first: only its answer is lost."""
    retry_after_seconds: int | None = None
    in_stream: bool = False
    """A watch begins well and then sends `status` as its first event."""
    but_not: str = "/leases"
    """Requests whose path holds this are spared."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request of the client."""

    verb: Verb
    path: str
    status: int
    """What the fault made of it; 0 is a reset, -1 no fault."""


class ApiFaultProxy:
    """One listening port in front of an API server; `running_api_fault_proxy` starts it."""

    def __init__(self, upstream: str, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        """For clients."""
        self.faults: list[ApiFault] = []
        """The first one that hits a request decides."""
        self.requests: list[SeenRequest] = []
        self._upstream = upstream
        self.transports: WeakSet[asyncio.BaseTransport] = WeakSet()
        """Of connections of clients, and of those to the API server that end in the middle of an answer."""
        self._random = random.Random(0)
        self._hits: Counter[ApiFault] = Counter()
        self._stalled_epoch = 0
        self._cut_epoch = 0
        self._epoch = 1

    def stall_open_watches(self) -> None:
        """Of watches that are open now nothing passes any more, and nothing is closed; new ones are well."""
        self._stalled_epoch = self._epoch
        self._epoch += 1

    def cut_open_watches(self) -> None:
        """Watches that are open now are reset, so that clients begin new ones."""
        self._cut_epoch = self._epoch
        self._epoch += 1

    def hits(self, status: int | None = None) -> int:
        """How many requests met a fault."""
        return sum(seen.status != -1 and status in {None, seen.status} for seen in self.requests)

    async def serve(self, request: web.BaseRequest, session: aiohttp.ClientSession) -> web.StreamResponse:
        """Answer one request, by a fault or by the API server."""
        verb = _verb(request)
        assert request.transport is not None
        self.transports.add(request.transport)
        fault = self._fault(verb, request.path)
        self.requests.append(SeenRequest(verb, request.path, -1 if fault is None else fault.status))
        if fault is None:
            return await self._forward(request, session, verb)
        if fault.after:
            await self._forward(request, session, verb, quiet=True)
        if fault.status == 0:
            request.transport.abort()
            raise asyncio.CancelledError
        if fault.in_stream:
            event = {"type": "ERROR", "object": _status(fault.status)}
            return web.Response(body=json.dumps(event).encode() + b"\n", content_type="application/json")
        headers = {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
        return web.json_response(_status(fault.status), status=fault.status, headers=headers)

    def _fault(self, verb: Verb, path: str) -> ApiFault | None:
        for fault in list(self.faults):
            if verb not in fault.verbs or (fault.but_not and fault.but_not in path):
                continue
            if self._hits[fault] < fault.at_most and self._random.random() < fault.ratio:
                self._hits[fault] += 1
                return fault
        return None

    async def _forward(
        self, request: web.BaseRequest, session: aiohttp.ClientSession, verb: Verb, *, quiet: bool = False
    ) -> web.StreamResponse:
        epoch = self._epoch
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        async with session.request(
            request.method, self._upstream + request.raw_path, headers=headers, data=body or None
        ) as answer:
            if answer.connection is not None and answer.connection.transport is not None:
                self.transports.add(answer.connection.transport)
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP | {"content-encoding"}:
                    response.headers[name] = value
            if quiet:
                await answer.read()
                return response
            await response.prepare(request)
            if verb == "watch":
                carry = asyncio.create_task(self._carry(answer, response, epoch))
                try:
                    while not carry.done() and epoch > self._cut_epoch:
                        await asyncio.wait([carry], timeout=_POLL_SECONDS)
                    if not carry.done():
                        raise ConnectionResetError("cut")
                    carry.result()
                finally:
                    carry.cancel()
            else:
                await response.write(await answer.read())
            await response.write_eof()
            return response

    async def _carry(self, answer: aiohttp.ClientResponse, response: web.StreamResponse, epoch: int) -> None:
        async for piece in answer.content.iter_any():
            while epoch <= self._stalled_epoch:  # noqa: ASYNC110 - ends with the client, which has to notice
                await asyncio.sleep(_POLL_SECONDS)
            await response.write(piece)


def _verb(request: web.BaseRequest) -> Verb:
    if request.method == "GET":
        if request.query.get("watch") in {"true", "1"}:
            return "watch"
        # Below a group's version: a collection, or one that is in a namespace, ends in its plural.
        parts = request.path.strip("/").split("/")
        below = parts[3:] if parts[0] == "apis" else parts[2:]
        if below[:1] == ["namespaces"] and len(below) > 2:
            below = below[2:]
        return "list" if len(below) == 1 else "get"
    verbs: dict[str, Verb] = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return verbs[request.method]


def _status(code: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"a fault proxy answers {code}",
        "code": code,
    }


@asynccontextmanager
async def _session(trust: ssl.SSLContext) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, trust_env=False, auto_decompress=True
    ) as session:
        yield session


async def _run(
    proxy: ApiFaultProxy, serving: ssl.SSLContext, upstream: ssl.SSLContext, started: "_Started"
) -> None:
    async with _session(upstream) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await proxy.serve(request, session)
            except (aiohttp.ClientError, OSError):  # the API server, or the client, is gone
                if request.transport is not None:
                    request.transport.abort()
                raise asyncio.CancelledError from None

        server = web.Server(handle, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving)
        await site.start()
        stop = asyncio.Event()
        started.report(runner.addresses[0][1], asyncio.get_running_loop(), stop)
        try:
            await stop.wait()
        finally:
            await runner.cleanup()
            # What was closed waits for the other side to end TLS, for which a busy API server takes long.
            for transport in list(proxy.transports):
                if isinstance(transport, asyncio.Transport):
                    transport.abort()
    await asyncio.sleep(_CLOSE_SECONDS)


class _Started:
    """What the thread reports to its starter."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def report(self, port: int, loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
        self.port, self._loop, self._stop = port, loop, stop
        self.ready.set()

    def stop(self) -> None:
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop.set)


@contextmanager
def running_api_fault_proxy(kubeconfig: Path, folder: Path) -> Iterator[ApiFaultProxy]:
    """A proxy in front of the API server of `kubeconfig`, with its credentials; `folder` holds its files."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    authority = CertificateAuthority(folder / "pki")
    pair = authority.server("proxy", names=["localhost"], addresses=[IPv4Address("127.0.0.1")])
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(pair.certificate, pair.key)
    upstream = _client_context(cluster, user, folder)

    proxy = ApiFaultProxy(cluster["server"], folder / "kubeconfig")
    started = _Started()
    thread = threading.Thread(target=lambda: asyncio.run(_run(proxy, serving, upstream, started)))
    thread.start()
    try:
        assert started.ready.wait(READY_SECONDS)
        cluster |= {"server": f"https://127.0.0.1:{started.port}"}
        cluster.pop("certificate-authority-data")
        cluster["certificate-authority"] = str(authority.files.certificate)
        document["users"][0]["user"] = {"token": "none"}
        proxy.kubeconfig.write_text(yaml.safe_dump(document))
        yield proxy
    finally:
        started.stop()
        thread.join(READY_SECONDS)
        assert not thread.is_alive()


def _client_context(cluster: dict[str, str], user: dict[str, str], folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
    )
    pem = folder / "client.pem"
    pem.touch(mode=0o600)
    pem.write_bytes(
        base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"])
    )
    context.load_cert_chain(pem)
    return context
