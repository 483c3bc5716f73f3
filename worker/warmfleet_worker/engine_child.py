"""What each engine process does first, whichever engine it has: the other side of `engine_start`."""

import argparse
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from warmfleet_runtime.die_with_parent import ParentGoneError, die_with_parent
from warmfleet_runtime.logs import configure_logs
from warmfleet_worker.settings import EngineSettings

_log = structlog.get_logger("warmfleet.worker.engine")


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The command line of an engine process."""

    fd: int
    """File descriptor of the socket to the server."""
    settings: EngineSettings


def begin_engine(module: str, arguments: Sequence[str] | None = None) -> EngineCommand | None:
    """Read the command line of `python -m module`; from then on this process logs, and ends with its server.

    None if the server is gone already.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--fd", type=int, required=True, help="file descriptor of the socket to the server")
    parser.add_argument("--settings", required=True, help="EngineSettings as JSON")
    given = parser.parse_args(arguments)
    command = EngineCommand(given.fd, msgspec.json.decode(given.settings, type=EngineSettings))
    configure_logs(process="engine")
    if not ends_with_parent():
        return None
    # Ctrl-C and SIGTERM reach the whole process group; the server decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return command


def ends_with_parent() -> bool:
    """End with the parent from now on; False if it is gone already."""
    try:
        die_with_parent(os.getppid())
    except ParentGoneError:
        return False
    except OSError as error:  # the end of file on the socket ends an engine, too, after the step in flight
        _log.warning("this process is not bound to its parent", reason=str(error))
    return True
