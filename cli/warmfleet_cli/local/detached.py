"""A supervisor in a session of its own: started by `warmfleet up --detach`, which waits until it is ready.

It reads the plan from stdin and writes messages to stdout, one JSON object per line, until the fleet is
ready. From then on it writes only to its log.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import localtime, strftime
from typing import IO, Final

import msgspec

from warmfleet_cli.errors import CliError, ExitCode, advice_of, exit_code_of
from warmfleet_cli.local.events import FleetEvent
from warmfleet_cli.local.plan import FleetPlan
from warmfleet_cli.local.state import RunFolder, unwritable
from warmfleet_cli.local.supervisor import supervise
from warmfleet_contracts.errors import WarmfleetError

_MAX_PLAN_BYTES: Final = 4 * 1024 * 1024
_STOP_SECONDS: Final = 60.0


class _Order(msgspec.Struct, frozen=True):
    home: str
    plan: FleetPlan


class _Failure(msgspec.Struct, frozen=True, tag="failure"):
    text: str
    advice: str
    exit_code: int


def start_detached(plan: FleetPlan, home: Path, report: Callable[[FleetEvent], None]) -> None:
    """Start a supervisor that keeps running after this process; returns when its fleet is ready.

    Raises:
        CliError: the fleet did not start; nothing of it is left running.
    """
    folder = RunFolder(home, plan.name)
    folder.create()
    with _opened(folder.supervisor_log_path) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "warmfleet_cli.local.detached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(msgspec.json.encode(_Order(str(home), plan)))
        decoder = msgspec.json.Decoder(FleetEvent | _Failure)
        with process.stdout as stdout:
            for line in stdout:
                match decoder.decode(line):
                    case _Failure() as failure:
                        process.wait()
                        raise CliError(
                            failure.text, advice=failure.advice, exit_code=ExitCode(failure.exit_code)
                        )
                    case FleetEvent() as event:
                        report(event)
                        if event.kind == "FleetReady":
                            return
    except KeyboardInterrupt:
        process.terminate()
        process.wait(_STOP_SECONDS)
        raise
    raise CliError(
        f"the supervisor ended with code {process.wait()} before the fleet was ready",
        advice=f"its log is {folder.supervisor_log_path}",
        exit_code=ExitCode.START_FAILED,
    )


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except OSError as error:
        raise unwritable(path, error) from error


def log_line(event: FleetEvent) -> str:
    """An event as one line with the local time."""
    return f"{strftime('%H:%M:%S', localtime(event.unix_seconds))} {event.text}"


def main() -> None:
    """The detached supervisor itself."""
    order = msgspec.json.decode(sys.stdin.buffer.read(_MAX_PLAN_BYTES), type=_Order)
    reports = _Reports()
    try:
        supervise(order.plan, RunFolder(Path(order.home), order.plan.name), reports.report, detached=True)
    except WarmfleetError as error:
        reports.fail(_Failure(str(error), advice_of(error), exit_code_of(error)))
        sys.exit(int(exit_code_of(error)))


class _Reports:
    """Writes events to the log, and to the waiting command until the fleet is ready."""

    def __init__(self) -> None:
        self._listening = True

    def report(self, event: FleetEvent) -> None:
        self._log(log_line(event))
        self._send(event)
        if event.kind == "FleetReady":
            # Nothing reads stdout from here on; what a library prints goes to the log.
            self._listening = False
            os.dup2(2, 1)

    def fail(self, failure: _Failure) -> None:
        self._log(f"error: {failure.text}")
        self._send(failure)

    @staticmethod
    def _log(line: str) -> None:
        with suppress(OSError):  # the disk is full: the line is lost
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    def _send(self, message: FleetEvent | _Failure) -> None:
        if not self._listening:
            return
        try:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._listening = False


if __name__ == "__main__":
    main()
