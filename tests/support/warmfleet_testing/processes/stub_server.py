"""A process that looks like a worker or a router to a supervisor: `python stub_server.py PORT [OPTION...]`.

Options: `fail` exits at once with code 3, `stubborn` ignores SIGTERM, `child` starts a process of its own,
`stalled` answers 503 to /livez after SIGUSR1, as a worker whose engine hangs does, `totals=FILE` answers with
the file's content what a router is asked for its totals.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CACHE = {
    "block_size_tokens": 16,
    "kv_bytes_per_token": 1024,
    "total_blocks": 100,
    "pinned_blocks": 1,
    "cached_blocks": 10,
}

STALLED = threading.Event()
TOTALS = [option.removeprefix("totals=") for option in sys.argv[2:] if option.startswith("totals=")]


class Handler(BaseHTTPRequestHandler):
    """Ready from the start; describes its cache to callers with the token."""

    def do_GET(self) -> None:
        token = os.environ.get("WARMFLEET_WORKER_TOKEN")
        if self.path == "/readyz":
            self._answer(200, {})
        elif self.path == "/livez":
            self._answer(503 if STALLED.is_set() else 200, {})
        elif self.path == "/internal/fleet/totals" and TOTALS:
            self._send(200, Path(TOTALS[0]).read_bytes())
        elif self.path == "/internal/cache" and self.headers["authorization"] == f"Bearer {token}":
            self._answer(200, CACHE)
        else:
            self._answer(404, {})

    def _answer(self, status: int, document: dict[str, int]) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keep the log for what the tests print."""


def main() -> None:
    port, options = int(sys.argv[1]), sys.argv[2:]
    sys.stderr.write(f"stub on {port}\n")
    if "fail" in options:
        sys.stderr.write("model.safetensors: checksum does not match\n")
        sys.exit(3)
    stop = signal.SIG_IGN if "stubborn" in options else lambda *_: os._exit(0)
    signal.signal(signal.SIGTERM, stop)
    if "stalled" in options:
        signal.signal(signal.SIGUSR1, lambda *_: STALLED.set())
    if "child" in options:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stderr.write(f"child {child.pid}\n")
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
