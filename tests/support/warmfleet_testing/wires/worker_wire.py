"""A worker's connection, in memory, on which a streamed answer has begun."""

import asyncio
from types import SimpleNamespace
from typing import Any

from aiohttp.client_proto import ResponseHandler

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(*contents: bytes) -> bytes:
    """A chunk of a body for each of `contents`."""
    return b"".join(b"%x\r\n%b\r\n" % (len(content), content) for content in contents)


class Wire(asyncio.Transport):
    """Either end of the router: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.write_paused = False
        self.is_reading = True
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def close(self) -> None: ...

    def arrives(self, data: bytes) -> None:
        """One read of the connection."""
        self.protocol.data_received(data)  # type: ignore[attr-defined]


async def begun_answer(wire: Wire) -> Any:
    """The client library's response, of which the head has come over `wire`."""
    library = ResponseHandler(asyncio.get_running_loop())
    library.connection_made(wire)
    wire.set_protocol(library)
    library.set_response_params(auto_decompress=False, read_bufsize=65_536)
    library.data_received(HEAD)
    _, content = await library.read()
    return SimpleNamespace(content=content, connection=SimpleNamespace(transport=wire, protocol=library))
