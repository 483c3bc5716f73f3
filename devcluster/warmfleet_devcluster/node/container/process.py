"""One run of a container's program: starts it through the launcher, logs its output, waits for it."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from warmfleet_devcluster.node.container.log_file import LogWriter
from warmfleet_devcluster.node.errors import StartError
from warmfleet_devcluster.node.volumes.mount import Mount

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_START_SECONDS: Final = 60.0
_DEVNULL: Final = asyncio.subprocess.DEVNULL
_PIPE: Final = asyncio.subprocess.PIPE


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """The JSON document that the launcher reads: what to run, as which user, in which namespaces."""

    argv: list[str]
    env: dict[str, str]
    uid: int = 0
    gid: int = 0
    groups: list[int] = field(default_factory=list)
    capabilities: list[int] = field(default_factory=list)
    """Numbers of the capabilities that stay in the bounding set."""
    no_new_privileges: bool = False
    workdir: str = "/"
    network: int = -1
    """File descriptor of the pod's network namespace."""
    hostname: str = ""
    scratch: str = ""
    """An empty folder on which the container's own tmpfs is mounted, visible only inside."""
    read_only_root: bool = False
    paths: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    join: dict[str, int] = field(default_factory=dict)
    """Namespace name -> file descriptor, to run inside a running container instead of a new one."""

    def of_command(self, argv: Sequence[str], join: dict[str, int]) -> "LaunchSpec":
        """Another program as the same user, in the same environment, inside the namespaces `join`."""
        return LaunchSpec(
            argv=list(argv),
            env=self.env,
            uid=self.uid,
            gid=self.gid,
            groups=self.groups,
            capabilities=self.capabilities,
            no_new_privileges=self.no_new_privileges,
            workdir=self.workdir,
            join=join,
        )


class ContainerProcess:
    """A started program. `wait` returns its exit code; 128 + n if signal n ended it."""

    def __init__(
        self,
        launcher: asyncio.subprocess.Process,
        pid: int,
        spec: LaunchSpec,
        log: LogWriter | None = None,
    ) -> None:
        """A program that runs already: `start` and `start_logged` make one."""
        self.pid = pid
        self._launcher = launcher
        self._spec = spec
        self._copying_output = None if log is None else asyncio.create_task(self._copy_output(log))

    @classmethod
    async def start(cls, spec: LaunchSpec, *, stdin: int = -3, stdout: int = -3, stderr: int = -3) -> Self:
        """Starts the program; raises StartError. Streams are as in `subprocess`: -3 is DEVNULL."""
        return cls(*await _launch(spec, stdin=stdin, stdout=stdout, stderr=stderr), spec)

    @classmethod
    async def start_logged(cls, spec: LaunchSpec, log: LogWriter) -> Self:
        """As `start`; output goes to `log`, which is closed when the program has ended."""
        try:
            launched = await _launch(spec, stdin=_DEVNULL, stdout=_PIPE, stderr=_PIPE)
        except BaseException:
            log.close()
            raise
        return cls(*launched, spec, log)

    async def run_inside(
        self, argv: Sequence[str], *, stdin: int = -3, stdout: int = -3, stderr: int = -3
    ) -> "ContainerProcess":
        """Starts another program in this program's namespaces, as its user; raises StartError."""
        namespaces = self._open_namespaces()
        try:
            return await ContainerProcess.start(
                self._spec.of_command(argv, namespaces), stdin=stdin, stdout=stdout, stderr=stderr
            )
        finally:
            for descriptor in namespaces.values():
                os.close(descriptor)

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        return self._launcher.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._launcher.stdout

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        return self._launcher.stderr

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program alone; does nothing if it has ended."""
        # The launcher has not been waited for while this is None, so the pid cannot be another's.
        if self._launcher.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def wait(self) -> int:
        code = await self._launcher.wait()
        if self._copying_output is not None:
            await self._copying_output
        return code

    def _open_namespaces(self) -> dict[str, int]:
        """Open descriptors of the program's namespaces; the caller closes them."""
        opened: dict[str, int] = {}
        try:
            for name in ("pid", "net", "ipc", "uts", "mnt"):
                opened[name] = os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            for descriptor in opened.values():
                os.close(descriptor)
            raise StartError("the container is not running") from error
        return opened

    async def _copy_output(self, log: LogWriter) -> None:
        async def copy(stream: str, reader: asyncio.StreamReader) -> None:
            while chunk := await reader.read(64 << 10):
                with contextlib.suppress(OSError):  # a full disk loses output, not the pod
                    log.write(stream, chunk)

        assert self.stdout is not None
        assert self.stderr is not None
        try:
            await asyncio.gather(copy("stdout", self.stdout), copy("stderr", self.stderr))
        finally:
            log.close()


async def _launch(
    spec: LaunchSpec, *, stdin: int, stdout: int, stderr: int
) -> tuple[asyncio.subprocess.Process, int]:
    """The launcher's process and the pid of the program that it started. Raises StartError."""
    document = os.memfd_create("launch")
    os.write(document, json.dumps(asdict(spec)).encode())
    os.lseek(document, 0, os.SEEK_SET)
    status_read, status_write = os.pipe()
    inherited = [
        document,
        status_write,
        *spec.join.values(),
        *([spec.network] if spec.network >= 0 else []),
    ]
    try:
        launcher = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(LAUNCHER)),
            *(str(document), str(status_write), str(os.getpid())),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=inherited,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        os.close(status_read)
        raise StartError(f"no launcher: {error}") from error
    finally:
        os.close(document)
        os.close(status_write)
    try:
        async with asyncio.timeout(_START_SECONDS):
            reported = await _read_all(status_read)
    except BaseException as error:
        launcher.kill()
        await launcher.wait()
        if isinstance(error, TimeoutError):
            raise StartError("the container did not start in time") from error
        raise
    pid, failure = 0, ""
    for line in reported.decode(errors="replace").splitlines():
        word, _, rest = line.partition(" ")
        if word == "pid":
            pid = int(rest)
        elif word == "error":
            failure = rest
    if failure or not pid:
        await launcher.wait()
        raise StartError(failure or "the launcher ended early")
    return launcher, pid


async def _read_all(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()
