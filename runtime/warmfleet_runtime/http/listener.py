"""The socket that a server listens on, and the line that reports its address."""

import ipaddress
import json
import socket
import sys
from typing import Final

import structlog

UNSENT_BYTES: Final = 128 * 1024
"""What the kernel keeps of an answer beyond what the client's window takes."""

UNTAKEN_SECONDS: Final = 90
"""How long the kernel keeps a connection whose peer takes nothing of what there is for it. Longer than a
write may take, so that it decides only where no writer waits any more, or the peer is gone."""

_log = structlog.get_logger("warmfleet.http")


def listen(host: str, port: int, uid: str) -> socket.socket | None:
    """A listening socket, announced on stdout; None when the address cannot be had, which is logged."""
    try:
        listener = bind(host, port)
    except OSError as error:
        _log.error("cannot listen", host=host, port=port, flag="--port", reason=str(error))
        return None
    announce(listener, uid)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    # Accepted sockets inherit it. Without it every answer after its first write waits for a delayed
    # acknowledgement, 40 ms; asyncio sets it only on sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Inherited, too: what a slow reader has not taken waits with its writer, where it is bounded and counted,
    # and not in megabytes of kernel memory per connection.
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNTAKEN_SECONDS * 1000)
    return listener


def announce(listener: socket.socket, uid: str) -> None:
    """The one line on stdout: where process `uid` listens."""
    host, port = listener.getsockname()[:2]
    sys.stdout.write(json.dumps({"event": "listening", "host": host, "port": port, "uid": uid}) + "\n")
    sys.stdout.flush()
