"""The run folder of a local fleet: `$WARMFLEET_HOME/run/<name>/` with its lock, state and logs."""

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.files import write_file_atomically
from warmfleet_runtime.process_identity import ProcessIdentity, is_alive

STATE_VERSION: Final = 1
_MAX_STATE_BYTES: Final = 1024 * 1024

FleetPhase = Literal["Starting", "Ready", "Stopping"]
ProcessPhase = Literal["Starting", "Ready", "Draining", "Restarting", "Stopped"]


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor's record of one process."""

    name: str
    role: Literal["worker", "router"]
    url: str
    port: int
    log_path: str
    phase: ProcessPhase = "Starting"
    identity: ProcessIdentity | None = None
    """None while no process runs."""
    restarts: int = 0
    started_unix_seconds: float = 0.0
    ready_after_seconds: float | None = None
    """From its start; None until it is ready."""


class ScaleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the number of workers."""

    unix_seconds: float
    from_replicas: int
    to_replicas: int
    reason: str
    """For people."""


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """A local fleet, as its supervisor last wrote it."""

    v: int = STATE_VERSION
    name: str
    phase: FleetPhase
    supervisor: ProcessIdentity
    detached: bool
    urls: list[str]
    """Base URLs of the routers."""
    served_names: list[str]
    drain_timeout_seconds: float
    processes: list[ProcessState]
    autoscaling: dict[str, Any] | None = None
    """`spec.autoscaling` of its manifest: `warmfleet top` advises by it."""
    scales: bool = False
    """Whether it scales itself."""
    changes: list[ScaleChange] = []
    """The last ones, oldest first."""

    @property
    def is_running(self) -> bool:
        """Whether the supervisor that wrote this is alive."""
        return is_alive(self.supervisor)


class RunFolder:
    """The files of one fleet, readable by their owner only: they hold worker tokens.

    Every method that writes raises CliError with the path if it fails.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.path = home / "run" / name
        self._state_path = self.path / "state.json"
        self.endpoints_path = self.path / "endpoints.json"
        self.supervisor_log_path = self.path / "supervisor.log"

    def create(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from error

    def log_path(self, process: str) -> Path:
        return self.path / f"{process}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock on the fleet's name during the block; the kernel releases it if the process ends.

        Raises:
            CliError: another process holds it.
        """
        self.create()
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise already_running(self.name) from None
            yield

    def read(self) -> FleetState | None:
        """The last state written, None if there is none or it is of another version."""
        try:
            with self._state_path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_STATE_BYTES), type=FleetState)
        except (FileNotFoundError, NotADirectoryError, *UNDECODABLE):
            return None

    def write(self, state: FleetState) -> None:
        self._replace(self._state_path, msgspec.json.encode(state))

    def write_endpoints(
        self,
        endpoints: Sequence[Mapping[str, object]],
        names: Sequence[str] = (),
        hold_seconds: float | None = None,
    ) -> None:
        """Write the list that routers read, with tokens; only its owner may read the file.

        `names` are those of the model; `hold_seconds` is how long routers hold its requests while it sleeps,
        None where it does not. Then routers learn its names from workers alone.
        """
        file: dict[str, object] = {"endpoints": endpoints}
        if hold_seconds is not None:
            file |= {"names": names, "hold_seconds": dict.fromkeys(names, hold_seconds)}
        self._replace(self.endpoints_path, msgspec.json.encode(file))

    def clear(self) -> None:
        """Remove the state and the endpoints; the logs stay."""
        self._state_path.unlink(missing_ok=True)
        self.endpoints_path.unlink(missing_ok=True)

    def _replace(self, path: Path, data: bytes) -> None:
        try:
            write_file_atomically(path, data)
        except OSError as error:
            raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> CliError:
    """The error for a file of a fleet that cannot be written, with its path."""
    return CliError(
        f"{path} cannot be written: {(error.strerror or str(error)).lower()}",
        advice="free some space, or set WARMFLEET_HOME to a folder on another disk",
    )


def already_running(name: str) -> CliError:
    """The error for a second fleet of the same name."""
    return CliError(
        f"fleet {name!r} is already running",
        advice=f"`warmfleet status` shows it, `warmfleet down --name {name}` stops it",
        exit_code=ExitCode.ALREADY_RUNNING,
    )


def known_fleets(home: Path) -> list[FleetState]:
    """Every fleet that has a state file, running or not, ordered by name."""
    try:
        names = sorted(path.name for path in (home / "run").iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    states = (RunFolder(home, name).read() for name in names)
    return [state for state in states if state is not None]


def choose_fleet(home: Path, name: str | None) -> FleetState | None:
    """The fleet that a command applies to: by name, or the only running one, or the only one with a state.

    Raises:
        CliError: no name is given and several fleets run.
    """
    fleets = known_fleets(home)
    if name is not None:
        return next((fleet for fleet in fleets if fleet.name == name), None)
    candidates = [fleet for fleet in fleets if fleet.is_running] or fleets
    if len(candidates) > 1:
        names = ", ".join(fleet.name for fleet in candidates)
        raise CliError(f"there are several fleets: {names}", advice="choose one with --name")
    return candidates[0] if candidates else None
