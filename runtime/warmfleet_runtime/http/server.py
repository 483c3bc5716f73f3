"""uvicorn as router and worker run it."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from warmfleet_runtime.http.connections import MAX_CONNECTIONS, Connections
from warmfleet_runtime.http.protocol import BoundedHeadProtocol

KEEP_ALIVE_SECONDS: Final = 75
"""Longer than a client keeps an idle connection, so that it never writes into a closing one."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handlers, logs and headers: a signal starts a drain."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        shutdown_seconds: int,
        date_header: bool = True,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`shutdown_seconds`: how long open connections may take to end once the server should exit."""
        self.connections = Connections(max_connections)
        config = uvicorn.Config(
            app,
            access_log=False,
            lifespan="off",
            log_config=None,
            proxy_headers=False,  # nothing reads the client's address
            server_header=False,
            date_header=date_header,
            http=BoundedHeadProtocol.bounded_by(self.connections),
            timeout_graceful_shutdown=shutdown_seconds,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ws="none",
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def runner(self) -> asyncio.Runner:
        """A runner with the fastest event loop that is installed."""
        return asyncio.Runner(loop_factory=self.config.get_loop_factory())
