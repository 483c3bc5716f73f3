"""`python -m warmfleet_router`: one address for the fleet.

Exit codes: 0 after a drain, 2 when the start was refused.
"""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import structlog
import uvicorn

from warmfleet_contracts.names import SALT_KEY_VARIABLE
from warmfleet_router.app import Router, build_router
from warmfleet_router.logs import configure_logs
from warmfleet_router.settings import parse_settings

log = structlog.get_logger("warmfleet.router")


class Server(uvicorn.Server):
    """uvicorn, but signals are ours: the first one means drain, the second one stop."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code."""
    settings = parse_settings(arguments)
    configure_logs(router=settings.router_id)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        log.error(  # noqa: TRY400 - a trace says nothing more
            "cannot listen", host=settings.host, port=settings.port, flag="--port", reason=str(error)
        )
        return 2
    if settings.salt_key_is_own:
        log.warning(
            "no salt key given: cached prefixes are not shared with other routers, nor with the next start",
            variable=SALT_KEY_VARIABLE,
        )
    announce(listener, settings.router_id)
    router = build_router(settings)
    config = uvicorn.Config(
        router.app,
        access_log=False,
        lifespan="off",
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=round(settings.drain_seconds),
        timeout_keep_alive=75,
        ws="none",
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve(router, Server(config), listener))
    return 0


async def serve(router: Router, server: uvicorn.Server, listener: socket.socket) -> None:
    """Run until a signal; what is live then may finish within the drain deadline."""

    def on_signal() -> None:
        log.info("draining", deadline_seconds=router.settings.drain_seconds)
        server.force_exit = server.should_exit  # the second one: do not wait for anybody
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with router.running():
        await server.serve(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=2048)
    # Accepted sockets inherit it. Without it every answer after its first write waits for a delayed
    # acknowledgement, 40 ms; asyncio sets it only on sockets that name their protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def announce(listener: socket.socket, router_id: str) -> None:
    """The one line on stdout: where this router listens."""
    host, port = listener.getsockname()[:2]
    sys.stdout.write(json.dumps({"event": "listening", "host": host, "port": port, "uid": router_id}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
