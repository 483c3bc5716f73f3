"""Starts and stops a devcluster from another process: runs its supervisor, reads its startup messages."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from warmfleet_devcluster.errors import (
    AlreadyRunningError,
    BinariesMissingError,
    DevclusterError,
    NotPermittedError,
    PortBusyError,
    StartFailedError,
)
from warmfleet_devcluster.lifecycle.startup_messages import Failure, Progress, Ready
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import StateFolder
from warmfleet_runtime.process_identity import is_alive, send_signal

_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_ERRORS: Final[dict[str, type[DevclusterError]]] = {
    kind.__name__: kind
    for kind in (
        AlreadyRunningError,
        BinariesMissingError,
        DevclusterError,
        NotPermittedError,
        PortBusyError,
        StartFailedError,
    )
}


@dataclass(frozen=True, slots=True)
class RunningSupervisor:
    """A supervisor whose devcluster is ready. Attached, it ends when the input of `process` is closed."""

    process: "subprocess.Popen[bytes]"
    ready: Ready


def start_supervisor(settings: DevclusterSettings, report: Callable[[str], None]) -> RunningSupervisor:
    """Start a supervisor in a session of its own; returns when its devcluster is ready. Needs root.

    `report` is called with each step, one line of text.

    Raises:
        DevclusterError: the devcluster did not start; nothing of it is left running.
    """
    if os.geteuid() != 0:
        raise _needs_root()
    folder = StateFolder(settings.state)
    folder.create()
    with folder.supervisor_log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "warmfleet_devcluster.lifecycle.supervisor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        _send_settings(process, settings)
        ready = _wait_until_ready(process, report, folder)
    except BaseException:
        process.terminate()
        process.wait(_STOP_SECONDS)
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
    if not settings.attached:
        assert process.stdin is not None
        process.stdin.close()
    return RunningSupervisor(process, ready)


def stop_devcluster(folder: StateFolder) -> bool:
    """End the devcluster in `folder`, or clean up after one that died; False if there is none.

    Raises:
        DevclusterError: it does not end.
    """
    state = folder.read()
    if state is None:
        return False
    try:
        running = send_signal(state.supervisor, signal.SIGTERM)
    except PermissionError as error:
        raise _needs_root() from error
    if not running:
        with folder.locked():
            folder.end_leftovers()
            folder.clear(keep_logs=True)
        return True
    deadline = time.monotonic() + _STOP_SECONDS
    while is_alive(state.supervisor):
        if time.monotonic() > deadline:
            raise DevclusterError(f"the devcluster has not ended after {_STOP_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    return True


def _needs_root() -> NotPermittedError:
    return NotPermittedError(
        "a devcluster needs root, to make network namespaces and mounts",
        advice="run it as root, for instance with `sudo -E`",
    )


def _send_settings(process: "subprocess.Popen[bytes]", settings: DevclusterSettings) -> None:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings, enc_hook=_encode_path))
    process.stdin.flush()


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", report: Callable[[str], None], folder: StateFolder
) -> Ready:
    assert process.stdout is not None
    decoder = msgspec.json.Decoder(Progress | Ready | Failure)
    for line in process.stdout:
        match decoder.decode(line):
            case Progress(text):
                report(text)
            case Failure(kind, text, advice):
                process.wait()
                raise _ERRORS[kind](text, advice=advice)
            case Ready() as ready:
                return ready
    raise StartFailedError(
        f"the supervisor ended with code {process.wait()} before the devcluster was ready",
        advice=f"its log is {folder.supervisor_log}",
    )


def _encode_path(value: Any) -> str:
    assert isinstance(value, Path), value
    return str(value)
