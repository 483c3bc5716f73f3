"""`python -m warmfleet_router`: one address for the fleet.

Exit codes: 0 after a drain, 2 when the start was refused, 143 at SIGTERM before it served.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from warmfleet_runtime.early_signals import end_on_sigterm
from warmfleet_runtime.memory import TERMINAL_LIBRARIES, importing, return_freed_memory

if __name__ == "__main__":
    end_on_sigterm()

with importing(without=TERMINAL_LIBRARIES):
    import structlog

    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_contracts.names import SALT_KEY_VARIABLE
    from warmfleet_router.app import Router, build_router
    from warmfleet_router.settings import parse_settings
    from warmfleet_router.workers.upstream import require_fast_parser
    from warmfleet_runtime.http.descriptors import connections_that_fit
    from warmfleet_runtime.http.listener import listen
    from warmfleet_runtime.http.server import Server
    from warmfleet_runtime.logs import configure_logs

DESCRIPTORS_EACH: Final = 2
"""The client's connection, and one to a worker."""

log = structlog.get_logger("warmfleet.router")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    return_freed_memory()
    settings = parse_settings(arguments)
    configure_logs(router=settings.router_id)
    try:
        require_fast_parser()
    except WarmfleetError as error:
        log.error("cannot start", reason=str(error))  # noqa: TRY400 - a trace adds nothing
        return 2
    listener = listen(settings.host, settings.port, settings.router_id)
    if listener is None:
        return 2
    if settings.salt_key_is_own:
        log.warning(
            "no salt key given: cached prefixes are not shared with other routers, nor with the next start",
            variable=SALT_KEY_VARIABLE,
        )
    router = build_router(settings)
    server = Server(
        router.api.app,
        shutdown_seconds=round(settings.drain_seconds),
        date_header=False,
        max_connections=connections_that_fit(settings.max_connections, descriptors_each=DESCRIPTORS_EACH),
    )
    with server.runner() as runner:
        runner.run(serve(router, server, listener))
    return 0


async def serve(router: Router, server: Server, listener: socket.socket) -> None:
    """Run until a signal; what is live then may finish within the drain deadline.

    First it lingers: not ready any more, it takes what still comes, and each answer closes its connection.
    Clients that keep connections so leave them one by one, and none writes into one that is being closed.
    Requests that are held for a sleeping model are refused at once: another router can hold them for longer.
    """
    loop, settings, health = asyncio.get_running_loop(), router.settings, router.api.health

    def leave() -> None:
        server.should_exit = True

    def on_signal() -> None:
        if health.is_draining:  # the second one: do not wait for live answers
            server.force_exit = server.should_exit = True
            return
        log.info("draining", linger_seconds=settings.linger_seconds, deadline_seconds=settings.drain_seconds)
        health.drain()
        router.admission.waking.drain()
        server.connections.closing = True
        loop.call_later(settings.linger_seconds, leave)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with router.running():
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    sys.exit(main())
