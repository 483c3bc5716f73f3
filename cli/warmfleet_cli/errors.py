"""The error that ends a command, and the exit codes of all commands."""

from enum import IntEnum

from warmfleet_contracts.errors import ManifestError, ModelError, WarmfleetError
from warmfleet_devcluster.errors import AlreadyRunningError, DevclusterError, PortBusyError, StartFailedError


class ExitCode(IntEnum):
    """Exit codes of every command; scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MANIFEST = 3
    PORT_BUSY = 4
    ALREADY_RUNNING = 5
    NOT_RUNNING = 6
    MODEL = 7
    START_FAILED = 8
    REFUSED = 9
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 manifest refused, 4 port busy, 5 already running, "
    "6 not running or not reachable, 7 model missing or damaged, 8 start failed, 9 request refused, "
    "130 interrupted."
)


class CliError(WarmfleetError):
    """Raise to end a command with `error: TEXT`, an exit code, and `advice` on what to do about it.

    raise CliError("port 8080 is busy", advice="choose another", exit_code=ExitCode.PORT_BUSY)
    """

    def __init__(self, text: str, *, advice: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(text)
        self.advice = advice
        self.exit_code = exit_code


_EXIT_CODES: dict[type[WarmfleetError], ExitCode] = {
    ManifestError: ExitCode.MANIFEST,
    ModelError: ExitCode.MODEL,
    AlreadyRunningError: ExitCode.ALREADY_RUNNING,
    PortBusyError: ExitCode.PORT_BUSY,
    StartFailedError: ExitCode.START_FAILED,
}


def exit_code_of(error: WarmfleetError) -> ExitCode:
    """The documented exit code for an error of any package."""
    if isinstance(error, CliError):
        return error.exit_code
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), ExitCode.FAILED)


def advice_of(error: WarmfleetError) -> str:
    """What the user can do about an error; empty if nothing is known."""
    return error.advice if isinstance(error, CliError | DevclusterError) else ""
