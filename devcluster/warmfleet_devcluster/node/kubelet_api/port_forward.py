"""GET /portForward over WebSocket: connections into a pod's network, as if made from inside the pod.

kubectl carries SPDY frames inside the WebSocket, a pair of streams per connection; other clients name their
ports beforehand and use a pair of channels per port (v4.channel.k8s.io).
"""

import asyncio
import contextlib
import socket as sockets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import WSMsgType, web

from warmfleet_devcluster.node.host.network import in_namespace
from warmfleet_devcluster.node.kubelet_api.spdy import (
    GOAWAY,
    PING,
    RST_STREAM,
    SYN_STREAM,
    ControlFrame,
    DataFrame,
    SpdyError,
    SpdyReader,
    SpdyWriter,
)
from warmfleet_devcluster.node.process_node import ProcessNode

_SPDY: Final = "SPDY/3.1+portforward.k8s.io"
_CHANNELS: Final = "v4.channel.k8s.io"
_CHUNK_BYTES: Final = 32 << 10
_MAX_MESSAGE_BYTES: Final = 2 << 20
_MAX_STREAMS: Final = 2048
_CONNECT_SECONDS: Final = 5.0
log = structlog.get_logger()

Connect = Callable[[int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def serve_port_forward(node: ProcessNode) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The request handler for one node."""

    async def handle(request: web.Request) -> web.StreamResponse:
        pod = node.find(request.match_info["namespace"], request.match_info["pod"])
        if pod is None or pod.namespace_fd is None:
            raise web.HTTPNotFound(text="the pod is not running on this node")

        async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            namespace = pod.namespace_fd
            if namespace is None:
                raise ConnectionRefusedError("the pod is not running any more")
            return await _connect(namespace, port)

        socket = web.WebSocketResponse(protocols=(_SPDY, _CHANNELS), max_msg_size=_MAX_MESSAGE_BYTES)
        await socket.prepare(request)
        if socket.ws_protocol == _SPDY:
            await SpdyForward(socket, connect).run()
        else:
            ports = [int(port) for text in request.query.getall("ports", []) for port in text.split(",")]
            await ChannelForward(socket, connect, ports).run()
        return socket

    return handle


@dataclass(slots=True)
class _Pair:
    """The two streams of one forwarded connection."""

    port: int
    error: int = 0
    data: int = 0
    writer: asyncio.StreamWriter | None = None


class SpdyForward:
    """One kubectl: many connections, each of an error and a data stream with the same request id."""

    def __init__(self, socket: web.WebSocketResponse, connect: Connect) -> None:
        self._socket = socket
        self._connect = connect
        self._spdy = SpdyWriter()
        self._pairs: dict[str, _Pair] = {}
        self._by_data: dict[int, _Pair] = {}
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until either side closes the connection."""
        reader = SpdyReader()
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    for frame in reader.feed(message.data):
                        await self._take(frame)
        except (SpdyError, ConnectionError) as error:
            log.warning("port-forward ended", error=str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._socket.close()

    async def _take(self, frame: DataFrame | ControlFrame) -> None:
        if isinstance(frame, DataFrame):
            await self._pass_on(frame)
        elif frame.kind == SYN_STREAM:
            await self._open(frame)
        elif frame.kind == PING:
            await self._send(self._spdy.control(PING, frame.body))
        elif frame.kind == RST_STREAM and frame.stream in self._by_data:
            writer = self._by_data[frame.stream].writer
            if writer is not None:
                writer.transport.abort()
        elif frame.kind == GOAWAY:
            raise ConnectionResetError("the client closed the connection")

    async def _open(self, frame: ControlFrame) -> None:
        if len(self._pairs) >= _MAX_STREAMS:
            raise SpdyError(f"more than {_MAX_STREAMS} connections at a time")
        async with self._sending:
            await self._socket.send_bytes(self._spdy.syn_reply(frame.stream))
        request = frame.headers.get("requestid", "")
        port = frame.headers.get("port", "")
        if not port.isdigit():
            raise SpdyError("a stream without a port")
        pair = self._pairs.setdefault(request, _Pair(int(port)))
        if frame.headers.get("streamtype") == "error":
            pair.error = frame.stream
        else:
            pair.data = frame.stream
            self._by_data[frame.stream] = pair
        if pair.error and pair.data:
            # Data may follow in the next frame: it must find the connection.
            await self._begin(request, pair)

    async def _begin(self, request: str, pair: _Pair) -> None:
        try:
            reader, pair.writer = await self._connect(pair.port)
        except OSError as error:
            text = f"failed to connect to port {pair.port} of the pod: {error}"
            await self._send(self._spdy.data(pair.error, text.encode(), final=True))
            await self._finish(request, pair)
            return
        task = asyncio.create_task(self._return(request, pair, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, frame: DataFrame) -> None:
        pair = self._by_data.get(frame.stream)
        if pair is None or pair.writer is None:
            return
        with contextlib.suppress(ConnectionError):  # `_return` reports that the pod has closed
            if frame.content:
                pair.writer.write(frame.content)
                await pair.writer.drain()
            if frame.final and pair.writer.can_write_eof():
                pair.writer.write_eof()

    async def _return(self, request: str, pair: _Pair, reader: asyncio.StreamReader) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while chunk := await reader.read(_CHUNK_BYTES):
                    await self._send(self._spdy.data(pair.data, chunk))
            await self._send(self._spdy.data(pair.error, b"", final=True))
            await self._finish(request, pair)
        except ConnectionError:
            pass  # the client has disconnected; `run` ends by itself
        finally:
            if pair.writer is not None:
                pair.writer.close()

    async def _finish(self, request: str, pair: _Pair) -> None:
        self._pairs.pop(request, None)
        self._by_data.pop(pair.data, None)
        await self._send(self._spdy.data(pair.data, b"", final=True))

    async def _send(self, frame: bytes) -> None:
        async with self._sending:
            await self._socket.send_bytes(frame)


class ChannelForward:
    """One connection per port named in the request: channel 2i carries its data, 2i + 1 its error."""

    def __init__(self, socket: web.WebSocketResponse, connect: Connect, ports: list[int]) -> None:
        self._socket = socket
        self._connect = connect
        self._ports = ports[:128]  # a channel is one byte

    async def run(self) -> None:
        """Until the client closes, or every connection has ended."""
        writers: dict[int, asyncio.StreamWriter] = {}
        tasks: list[asyncio.Task[None]] = []
        try:
            for channel, port in self._channels():
                # Each channel opens with its port number.
                for number in (channel, channel + 1):
                    await self._socket.send_bytes(bytes([number]) + port.to_bytes(2, "little"))
                try:
                    reader, writers[channel] = await self._connect(port)
                except OSError as error:
                    await self._socket.send_bytes(bytes([channel + 1]) + str(error).encode())
                    continue
                tasks.append(asyncio.create_task(self._return(channel, reader)))
            returning = asyncio.create_task(self._all(list(tasks)))
            listening = asyncio.create_task(self._listen(writers))
            tasks += [returning, listening]
            await asyncio.wait({listening, returning}, return_when=asyncio.FIRST_COMPLETED)
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in writers.values():
                writer.close()
            await self._socket.close()

    def _channels(self) -> Iterator[tuple[int, int]]:
        return ((2 * index, port) for index, port in enumerate(self._ports))

    @staticmethod
    async def _all(tasks: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*tasks)

    async def _listen(self, writers: dict[int, asyncio.StreamWriter]) -> None:
        async for message in self._socket:
            if message.type is WSMsgType.BINARY and message.data and message.data[0] in writers:
                writer = writers[message.data[0]]
                with contextlib.suppress(ConnectionError):
                    writer.write(message.data[1:])
                    await writer.drain()

    async def _return(self, channel: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await self._socket.send_bytes(bytes([channel]) + chunk)


async def _connect(namespace: int, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the pod's own loopback, made inside its network namespace."""

    def dial() -> sockets.socket:
        return sockets.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS)

    connected = await asyncio.to_thread(in_namespace, namespace, dial)
    connected.setblocking(False)
    return await asyncio.open_connection(sock=connected)
