"""GET /exec over WebSocket (v5.channel.k8s.io): a command inside a running container."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import WSMsgType, web

from warmfleet_devcluster.node.container.process import ContainerProcess
from warmfleet_devcluster.node.errors import StartError
from warmfleet_devcluster.node.process_node import ProcessNode

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_MAX_MESSAGE_BYTES: Final = 1 << 20
_PIPE: Final = asyncio.subprocess.PIPE
_DEVNULL: Final = asyncio.subprocess.DEVNULL


def serve_exec(node: ProcessNode) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The request handler for one node."""

    async def handle(request: web.Request) -> web.StreamResponse:
        pod = node.find(request.match_info["namespace"], request.match_info["pod"])
        container = pod.container(request.match_info["container"]) if pod else None
        if container is None or container.process is None:
            raise web.HTTPNotFound(text="the container is not running on this node")
        socket = web.WebSocketResponse(
            protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=_MAX_MESSAGE_BYTES
        )
        await socket.prepare(request)
        wanted = request.query.get
        try:
            started = await container.process.run_inside(
                request.query.getall("command", ["(no command)"]),
                stdin=_PIPE if wanted("input") == "1" or wanted("stdin") == "true" else _DEVNULL,
                stdout=_PIPE,
                stderr=_PIPE,
            )
        except StartError as error:
            await _finish(socket, _failure(f"error executing command in container: {error}", 128))
            return socket
        await _copy_streams(socket, started)
        return socket

    return handle


async def _copy_streams(socket: web.WebSocketResponse, process: ContainerProcess) -> None:
    """Copies input and output until the command ends; kills the command when the client disconnects."""

    async def send(channel: int, reader: asyncio.StreamReader | None) -> None:
        assert reader is not None
        while chunk := await reader.read(32 << 10):
            await socket.send_bytes(bytes([channel]) + chunk)

    async def send_output() -> int:
        await asyncio.gather(send(_STDOUT, process.stdout), send(_STDERR, process.stderr))
        return await process.wait()

    receiving = asyncio.create_task(_receive_input(socket, process))
    sending = asyncio.create_task(send_output())
    try:
        await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            code = sending.result()
            await _finish(socket, _success() if code == 0 else _exited(code))
    except OSError:
        pass  # the client has disconnected
    finally:
        process.kill()
        receiving.cancel()
        sending.cancel()
        await asyncio.gather(receiving, sending, return_exceptions=True)


async def _receive_input(socket: web.WebSocketResponse, process: ContainerProcess) -> None:
    """Passes on standard input until the connection is closed."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data or process.stdin is None:
            continue
        channel, content = message.data[0], message.data[1:]
        try:
            if channel == _STDIN:
                process.stdin.write(content)
                await process.stdin.drain()
            elif channel == _CLOSE and content[:1] == bytes([_STDIN]):
                process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            continue  # the command does not read any more; its output still counts


async def _finish(socket: web.WebSocketResponse, status: dict[str, Any]) -> None:
    await socket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())
    await socket.close()


def _success() -> dict[str, Any]:
    return {"metadata": {}, "status": "Success"}


def _exited(code: int) -> dict[str, Any]:
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _failure(message: str, code: int) -> dict[str, Any]:
    return {"metadata": {}, "status": "Failure", "reason": "InternalError", "message": message, "code": code}
