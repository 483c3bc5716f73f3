"""The processes behind pods of process nodes, on this machine: the targets of faults."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any


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
