"""One run of a container's program: started through the launcher, its output kept, signalled, waited for."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from warmfleet_devcluster.node.container.log_file import LogWriter
from warmfleet_devcluster.node.errors import StartError

LAUNCHER: Final = Path(__file__).with_name("launcher.py")
_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine inside a container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What the launcher is told; the document that it reads."""

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


class ContainerProcess:
    """A started program. `wait` gives its exit code; 128 + n if signal n ended it."""

    def __init__(self, launcher: asyncio.subprocess.Process, pid: int) -> None:
        self._launcher = launcher
        self.pid = pid
        self._pump: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, spec: LaunchSpec, *, stdin: int = -3, stdout: int = -3, stderr: int = -3) -> Self:
        """Starts the program; raises StartError. Streams are as in `subprocess`: -3 is DEVNULL."""
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
                told = await _read_all(status_read)
        except BaseException as error:
            launcher.kill()
            await launcher.wait()
            if isinstance(error, TimeoutError):
                raise StartError("the container did not start in time") from error
            raise
        pid, failure = 0, ""
        for line in told.decode(errors="replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "pid":
                pid = int(rest)
            elif word == "error":
                failure = rest
        if failure or not pid:
            await launcher.wait()
            raise StartError(failure or "the launcher ended early")
        return cls(launcher, pid)

    @classmethod
    async def start_logged(cls, spec: LaunchSpec, log: LogWriter) -> Self:
        """As `start`; output goes to `log`, which is closed when the program has ended."""
        try:
            started = await cls.start(spec, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        except BaseException:
            log.close()
            raise
        started._pump = asyncio.create_task(started._keep_output(log))  # noqa: SLF001 - our own
        return started

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
        """To the program only; nothing happens if it has ended."""
        # The launcher has not been waited for while this is None, so the pid cannot be another's.
        if self._launcher.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    async def wait(self) -> int:
        code = await self._launcher.wait()
        if self._pump is not None:
            await self._pump
        return code

    def namespaces(self) -> dict[str, int]:
        """Open descriptors of the program's namespaces, for `LaunchSpec.join`; the caller closes them."""
        opened: dict[str, int] = {}
        try:
            for name in ("pid", "net", "ipc", "uts", "mnt"):
                opened[name] = os.open(f"/proc/{self.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            for descriptor in opened.values():
                os.close(descriptor)
            raise StartError("the container is not running") from error
        return opened

    async def _keep_output(self, log: LogWriter) -> None:
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


async def run_inside(
    container: ContainerProcess, spec: dict[str, Any], *, stdin: int = -3, stdout: int = -3, stderr: int = -3
) -> ContainerProcess:
    """Starts another program inside a running container; `spec` are the fields of LaunchSpec but `join`."""
    namespaces = container.namespaces()
    try:
        return await ContainerProcess.start(
            LaunchSpec(**spec, join=namespaces), stdin=stdin, stdout=stdout, stderr=stderr
        )
    finally:
        for descriptor in namespaces.values():
            os.close(descriptor)


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
