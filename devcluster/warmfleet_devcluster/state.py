"""The state folder of a devcluster: lock, state, logs, credentials, volumes.

All of it is gone after `down`, but for the logs, which the next `up` clears.
"""

import fcntl
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_devcluster.errors import AlreadyRunningError, DevclusterError
from warmfleet_runtime.files import write_file_atomically
from warmfleet_runtime.process_identity import ProcessIdentity, is_alive, send_signal

STATE_VERSION: Final = 1
_MAX_STATE_BYTES: Final = 1024 * 1024
_LOCK: Final = "lock"
_SUPERVISOR_LOG: Final = "supervisor.log"
_STATE: Final = "state.json"
_LOGS: Final = "logs"


class ComponentState(msgspec.Struct, frozen=True):
    """One process of the devcluster."""

    name: str
    identity: ProcessIdentity


class DevclusterState(msgspec.Struct, frozen=True, kw_only=True):
    """A devcluster, as its supervisor last wrote it."""

    v: int = STATE_VERSION
    phase: Literal["Starting", "Ready", "Stopping"]
    supervisor: ProcessIdentity
    api_url: str = ""
    nodes: list[str] = []
    components: list[ComponentState] = []

    @property
    def is_running(self) -> bool:
        """Whether the supervisor that wrote this still lives."""
        return is_alive(self.supervisor)


class StateFolder:
    """Files of one devcluster. Any user may read its state; everything else only its owner."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubeconfig = path / "kubeconfig"
        self.images = path / "images.json"
        self.images_values = path / "images.values.yaml"
        self.audit_log = path / "audit.log"
        self.pki = path / "pki"
        self.logs = path / _LOGS
        self.supervisor_log = path / _SUPERVISOR_LOG
        self.volumes = path / "volumes"

    def log(self, component: str) -> Path:
        """What a component wrote to its standard output and error."""
        return self.logs / f"{component}.log"

    def part(self, component: str) -> Path:
        """A component's own folder."""
        return self.path / component

    def create(self) -> None:
        """Make the folder if it does not exist. Other users may enter it, for files they own."""
        self.path.mkdir(mode=0o711, parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the folder for as long as this process lives; the kernel frees the lock when it ends.

        Raises:
            AlreadyRunningError: another devcluster owns it.
            DevclusterError: the folder cannot be made.
        """
        try:
            self.create()
            file = (self.path / _LOCK).open("ab")
        except OSError as error:
            raise DevclusterError(
                f"{self.path} cannot be written: {(error.strerror or str(error)).lower()}",
                advice="choose another folder with --state",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunningError(
                    f"a devcluster is running in {self.path}",
                    advice="`warmfleet devcluster status` shows it, `warmfleet devcluster down` ends it",
                ) from None
            yield

    def read(self) -> DevclusterState | None:
        """The last state written, None if there is none or it is of another version."""
        try:
            with (self.path / _STATE).open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_STATE_BYTES), type=DevclusterState)
        except (FileNotFoundError, NotADirectoryError, *UNDECODABLE):
            return None

    def write(self, state: DevclusterState) -> None:
        """Replace the state; any user of this machine may read it."""
        write_file_atomically(self.path / _STATE, msgspec.json.encode(state), mode=0o644)

    def end_leftovers(self) -> None:
        """Kill the processes of a supervisor that died before it stopped them. Call with the lock held.

        Its children are bound to die with it; by identity, so that a process which merely inherited a pid
        is left alone.
        """
        state = self.read()
        for component in state.components if state else ():
            send_signal(component.identity, signal.SIGKILL)

    def clear(self, *, keep_logs: bool) -> None:
        """Forget the devcluster. Call with the lock held.

        Two files stay: others may wait on the lock, and the supervisor's log is open.
        """
        for path in self.path.iterdir():
            if path.name in (_LOCK, _SUPERVISOR_LOG) or (keep_logs and path.name == _LOGS):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                with suppress(FileNotFoundError):
                    path.unlink()
