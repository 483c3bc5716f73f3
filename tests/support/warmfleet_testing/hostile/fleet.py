"""A guarded router before a tiny worker, both as processes, and what must be as it was after an attack."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_contracts.keys import encode_key_file
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.hostile.canaries import ANSWER_SECONDS, Cage
from warmfleet_testing.hostile.request import Answer, Caller, HostileRequest, send
from warmfleet_testing.processes.process_sockets import internet_sockets, resident_bytes
from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.router_process import RouterProcess, router_process

CONTEXT_TOKENS: Final = 256
MAX_GROWTH_BYTES: Final = 16 * 1024 * 1024
WORKER_TOKEN: Final = "token-of-the-attacked-worker"
LOOK_SECONDS: Final = 0.25


class Trap:
    """Listens where the requests' addresses point; no connection may arrive."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def is_untouched(self) -> bool:
        try:
            self._listener.accept()[0].close()
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._listener.close()


@dataclass
class HostileFleet:
    """`hostile_key` and `other_key` belong to two tenants that may call the model; `canaries` to a third."""

    router: RouterProcess
    worker: WorkerProcess
    hostile_key: str
    other_key: str
    others_key: str
    """May call another model only."""
    wrong_key: str
    ops_key: str
    cage: Cage
    trap: Trap

    @property
    def pids(self) -> dict[str, int]:
        return {
            "router": self.router.process.pid,
            "worker": self.worker.process.pid,
            "engine": self.worker.engine_pid,
        }

    def url(self, server: str) -> str:
        return self.router.url if server == "router" else self.worker.url

    def caller(self, server: str, key: str | None = None) -> Caller:
        return Caller(f"Authorization: Bearer {key or self._own_key(server)}", self.trap.address)

    def send(self, server: str, request: HostileRequest) -> Answer:
        return send(self.url(server), request, self.caller(server))

    def free_blocks(self) -> int:
        """Once nothing runs."""
        cache = self.worker.wait_until_idle()
        return int(cache["total_blocks"] - cache["pinned_blocks"])

    def resident_bytes(self) -> dict[str, int]:
        return {name: resident_bytes(pid) for name, pid in self.pids.items()}

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """The block attacks; canaries fly meanwhile, and afterwards all is as it was."""
        pids, blocks, resident = self.pids, self.free_blocks(), self.resident_bytes()
        outbound: set[str] = set()
        with self.cage.flying(), self._watched(outbound):
            yield
        assert self.pids == pids
        assert self.free_blocks() == blocks
        grown = {name: size - resident[name] for name, size in self.resident_bytes().items()}
        assert all(growth < MAX_GROWTH_BYTES for growth in grown.values()), grown
        assert self.trap.is_untouched()
        assert not outbound
        for server in (self.router, self.worker):
            crashed = [line for line in server.log_lines() if line["level"] not in {"info", "warning"}]
            assert not crashed, crashed

    @contextmanager
    def _watched(self, outbound: set[str]) -> Iterator[None]:
        """Note each socket that is neither a client's nor the router's to its worker."""
        ending = threading.Event()
        router_port = int(self.router.url.rpartition(":")[2])
        pids = self.pids

        def look() -> None:
            while not ending.wait(LOOK_SECONDS):
                for name, pid in pids.items():
                    for entry in internet_sockets(pid):
                        is_served = entry.local_port in {router_port, self.worker.port}
                        is_dispatch = name == "router" and entry.remote_port == self.worker.port
                        if not (is_served or is_dispatch):
                            outbound.add(f"{name}: {entry}")

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def _own_key(self, server: str) -> str:
        return self.hostile_key if server == "router" else WORKER_TOKEN


@contextmanager
def hostile_fleet(home: Path) -> Iterator[HostileFleet]:
    """With a cache that a few dozen sequences fill, so that an attack also preempts and evicts.

    The router lets requests wait as long as a canary does. By default it rejects what it expects to wait for
    three seconds, and whether a crowd comes to that is a matter of the machine, not of the attack.
    """
    keys = PlantedKeys()
    hostile, other, watched, ops = (keys.add(name).text for name in ("hostile", "other", "watched", "ops"))
    ops = keys.add("ops", scopes=("metrics", "admin")).text
    others = keys.add("others", models=["another"]).text
    (home / "keys.json").write_bytes(encode_key_file(keys.file))
    model = tiny_served_model(home / "model")
    flags = ("--kv-cache-bytes", "2000000", "--max-model-length-tokens", str(CONTEXT_TOKENS), "--uid", "w")
    router_flags = ("--keys-file", str(home / "keys.json"), "--max-wait-seconds", str(ANSWER_SECONDS))
    trap = Trap()
    try:
        with (
            running_worker(model, *flags, token=WORKER_TOKEN) as worker,
            router_process({"w": worker}, home, *router_flags) as router,
        ):
            cage = Cage(router.url, watched)
            cage.listen()
            wrong = hostile[:-1] + ("x" if hostile[-1] != "x" else "y")
            yield HostileFleet(router, worker, hostile, other, others, wrong, ops, cage, trap)
    finally:
        trap.close()
