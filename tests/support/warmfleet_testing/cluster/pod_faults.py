"""The processes behind pods of process nodes, on this machine: the targets of faults."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

_STOP_SECONDS: Final = 10.0


def program_of(pod: dict[str, Any], module: str) -> int:
    """The pid, on this machine, of a pod's container that runs `module`: PID 1 of its own namespace.

    Raises:
        LookupError: it does not run.
    """
    wanted = (pod["metadata"]["uid"], pod["metadata"]["name"])
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            status = (process / "status").read_text()
            numbers = next(line for line in status.splitlines() if line.startswith("NSpid")).split()[1:]
            if len(numbers) < 2 or numbers[-1] != "1":
                continue
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            values = {value for name, _, value in (one.partition("=") for one in environment) if name}
            if module in words and values & set(wanted):
                return int(process.name)
    raise LookupError(f"no {module} of pod {wanted[1]}")


def kill_program(pod: dict[str, Any], module: str) -> None:
    """SIGKILL for the program of a pod, as the kernel does it when memory runs out."""
    os.kill(program_of(pod, module), signal.SIGKILL)


@contextmanager
def stopped_engine(pod: dict[str, Any]) -> Iterator[None]:
    """The engine process of a worker's pod is stopped; its server runs on."""
    server = program_of(pod, "warmfleet_worker")
    (engine,) = map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
    os.kill(engine, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + _STOP_SECONDS
        while Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline, f"process {engine} does not stop"
        yield
    finally:
        os.kill(engine, signal.SIGCONT)
