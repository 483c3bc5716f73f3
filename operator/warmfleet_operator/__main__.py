"""`python -m warmfleet_operator`: turns ModelDeployments into workers.

Exit codes: 0 after SIGTERM or SIGINT, 1 when the watches ended or the API server cannot be used, 2 for a
wrong flag or a port in use, 143 at SIGTERM before it ran.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence

import structlog

from warmfleet_runtime.early_signals import end_on_sigterm
from warmfleet_runtime.memory import importing, return_freed_memory

if __name__ == "__main__":
    end_on_sigterm()

with importing():
    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_contracts.names import FIELD_MANAGER
    from warmfleet_operator.app import Operator
    from warmfleet_operator.cluster import Cluster
    from warmfleet_operator.health import health_app, metrics_app
    from warmfleet_operator.leadership.fence import Fence
    from warmfleet_operator.settings import OperatorSettings, parse_settings
    from warmfleet_runtime.http.listener import listen
    from warmfleet_runtime.http.server import Server
    from warmfleet_runtime.logs import configure_logs

log = structlog.get_logger("warmfleet.operator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; returns the exit code."""
    return_freed_memory()
    settings = parse_settings(arguments)
    configure_logs(settings.log_level, operator=settings.identity)
    # kopf logs every event of every object; the operator logs what matters of them.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(
        logging.ERROR
    )  # it warns that signals are handled elsewhere
    logging.getLogger("httpx").setLevel(logging.WARNING)
    listeners = [
        listen(settings.host, port, f"{settings.identity}/{name}")
        for name, port in (("health", settings.health_port), ("metrics", settings.metrics_port))
    ]
    if None in listeners:
        return 2
    try:
        asyncio.run(serve(settings, [listener for listener in listeners if listener is not None]))
    except WarmfleetError as error:
        log.error("stopped", reason=str(error))  # noqa: TRY400 - the text is enough
        return 1
    log.info("stopped", reason="signal")
    return 0


async def serve(settings: OperatorSettings, listeners: list[socket.socket]) -> None:
    """Run until a signal."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fence = Fence()
    lease = settings.lease
    log.info("starting", version=settings.version, namespaces=list(settings.watched_namespaces) or "all")
    connected = Cluster.connected(
        settings.kubeconfig,
        fence,
        write_seconds=lease.duration_seconds - lease.renew_seconds,
        user_agent=f"{FIELD_MANAGER}/{settings.version} ({settings.identity})",
    )
    async with connected as cluster:
        operator = Operator(cluster, fence, settings)
        health = health_app(
            liveness_failure=operator.liveness_failure,
            readiness_failure=operator.readiness_failure,
            role=operator.role,
        )
        apps = (health, metrics_app(operator.render_metrics))
        servers = [Server(app, shutdown_seconds=1, date_header=False) for app in apps]
        serving = [
            asyncio.create_task(server.serve(sockets=[listener]))
            for server, listener in zip(servers, listeners, strict=True)
        ]
        try:
            await operator.run(stop)
        finally:
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*serving)


if __name__ == "__main__":
    sys.exit(main())
