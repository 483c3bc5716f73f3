"""One real worker behind one real router, and all that can be seen of them from outside."""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.router_process import RouterProcess, router_process

UID: Final = "watched"
TOKEN: Final = "token-of-the-watched-worker"


@dataclass(frozen=True)
class WatchedFleet:
    """Requests go to `url`; every property is read anew."""

    router: RouterProcess
    worker: WorkerProcess

    @property
    def url(self) -> str:
        return self.router.url

    @property
    def pids(self) -> dict[str, int]:
        """Of router, worker and engine."""
        return {
            "router": self.router.process.pid,
            "worker": self.worker.process.pid,
            "engine": self.worker.engine_pid,
        }

    def fleet(self) -> dict[str, Any]:
        """`GET /internal/fleet` of the router."""
        fleet: dict[str, Any] = (
            httpx.get(f"{self.url}/internal/fleet", timeout=30, verify=NO_TLS).raise_for_status().json()
        )
        return fleet

    def worker_metric(self, name: str) -> float:
        """Sum over the series of that name."""
        return _sum(httpx.get(f"{self.worker.url}/metrics", timeout=30, verify=NO_TLS).text, name)

    def router_metric(self, name: str) -> float:
        """Sum over the series of that name."""
        return _sum(httpx.get(f"{self.url}/metrics", timeout=30, verify=NO_TLS).text, name)

    def resident_bytes(self) -> dict[str, int]:
        """Memory that each process holds now."""
        return {name: _status_bytes(pid, "VmRSS") for name, pid in self.pids.items()}

    def open_files(self) -> dict[str, int]:
        """File descriptors, sockets among them, that each process holds now."""
        return {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in self.pids.items()}

    def held_for_clients(self) -> dict[str, float]:
        """Everything that router and worker keep for requests under way; all zero once there are none."""
        fleet, cache = self.fleet(), self.worker.cache()
        (endpoint,) = fleet["endpoints"]
        load = endpoint["load"]
        return {
            "requests in flight": fleet["in_flight_requests"],
            "held requests": sum(held["requests"] for held in fleet["held"].values()),
            "open dispatches": endpoint["open_dispatches"],
            "unreported seats": endpoint["unreported_seats"],
            "running sequences": load["running_sequences"],
            "waiting sequences": load["waiting_sequences"],
            "queued tokens": load["queued_uncached_tokens"],
            "pinned blocks": cache["pinned_blocks"],
            "pinned blocks as the router knows": load["pinned_blocks"],
            "requests in flight by the metric": self.router_metric("warmfleet_router_requests_in_flight"),
        }

    def wait_until_quiet(self, *, seconds: float = 15) -> None:
        """Until nothing is kept for any request."""
        wait_until(lambda: not any(self.held_for_clients().values()), self.held_for_clients, seconds=seconds)

    def clear_cache(self) -> None:
        """Forget every block; the fleet must be quiet."""
        with self.worker.client() as client:
            client.delete("/internal/cache").raise_for_status()

        def forgotten() -> bool:
            cache = self.worker.cache()
            # The server's mirror gets it a moment after the load report.
            return not cache["cached_blocks"] and not cache["resident_blocks"]

        wait_until(forgotten, self.worker.cache)


@contextmanager
def watched_fleet(
    home: Path,
    model_path: Path,
    *worker_flags: str,
    router_flags: Sequence[str] = (),
    environment: Mapping[str, str] = {},
) -> Iterator[WatchedFleet]:
    """Both processes on free ports, ready; killed at the end."""
    flags = ("--uid", UID, *worker_flags)
    with (
        running_worker(model_path, *flags, token=TOKEN, environment=environment) as worker,
        router_process({UID: worker}, home, *router_flags, environment=environment) as router,
    ):
        yield WatchedFleet(router, worker)


def wait_until(
    condition: Callable[[], object], seen: Callable[[], object], *, seconds: float = 15, poll: float = 0.02
) -> None:
    """Until `condition` holds; fails with what is `seen` then."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, seen()
        time.sleep(poll)


def _sum(exposition: str, name: str) -> float:
    series = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", exposition, re.MULTILINE)
    return sum(map(float, series))


def _status_bytes(pid: int, field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
