"""A router that answers the operator's reads with what a test gives it, over kept connections."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH, FleetTotals, encode_totals


class StubRouter:
    """Change `totals`, `endpoints` and `status` at any time."""

    def __init__(self) -> None:
        self.totals = FleetTotals(router="stub", uptime_seconds=1e6)
        self.body: bytes | None = None
        """Instead of the encoded totals."""
        self.endpoints: list[dict[str, Any]] = []
        self.status = 200
        self.headers: dict[str, str] = {}
        """In every answer."""
        self.connections = 0
        self.tokens: set[str] = set()
        """Bearer tokens that reads of totals came with."""
        self.encodings: set[str] = set()
        """What clients accept."""
        self.posted: list[tuple[str, bytes]] = []
        """Path and body of each POST."""
        self.port = 0

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        """Status and body for a path."""
        if path != FLEET_TOTALS_PATH:
            return 200, msgspec.json.encode({"endpoints": self.endpoints})
        self.tokens.add(authorization.removeprefix("Bearer "))
        return self.status, encode_totals(self.totals) if self.body is None else self.body


@contextmanager
def stub_router(router: StubRouter | None = None) -> Iterator[StubRouter]:
    """A router on a free port of 127.0.0.1; `router` answers otherwise than a `StubRouter`."""
    router = router or StubRouter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            router.connections += 1

        def do_POST(self) -> None:
            router.posted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.do_GET()

        def do_GET(self) -> None:
            router.encodings.add(self.headers.get("accept-encoding", ""))
            status, body = router.answer(self.path, self.headers.get("authorization", ""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            for name, value in router.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    router.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield router
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
