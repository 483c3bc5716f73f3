"""Starts the engine process, before the server has imported its own modules: both then start at once."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_contracts.names import NAMESPACE_KEY_VARIABLE, WORKER_TOKEN_VARIABLE
from warmfleet_worker.engine_program import OWN_PROGRAM, EngineProgram
from warmfleet_worker.settings import EngineSettings

SLEEPING_THREADS: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""A kernel's threads sleep between parallel regions. Spinning, OpenMP's default, is a little faster on an
idle machine and tens of times slower as soon as another process needs one of the cores."""

_SERVERS_SECRETS: Final = frozenset({NAMESPACE_KEY_VARIABLE, WORKER_TOKEN_VARIABLE})
"""Callers are the server's concern: the engine, and all the code of vLLM, has no use for them."""


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A started engine, and the server's end of the socket between the two."""

    process: "subprocess.Popen[bytes]"
    connection: socket.socket

    def end(self) -> None:
        """Kill it before a client has taken it over."""
        self.connection.close()
        self.process.kill()


def start_engine(settings: EngineSettings, program: EngineProgram = OWN_PROGRAM) -> EngineProcess:
    """Start the process; returns at once."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own module and settings
            [
                *(program.python, "-m", program.module),
                *("--fd", str(theirs.fileno())),
                *("--settings", msgspec.json.encode(settings).decode()),
            ],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,  # stdout carries the server's own announcement only
            env={
                name: value
                for name, value in {**SLEEPING_THREADS, **os.environ}.items()
                if name not in _SERVERS_SECRETS
            },
        )
    return EngineProcess(process, ours)
