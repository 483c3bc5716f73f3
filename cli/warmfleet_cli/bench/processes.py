"""Worker and router processes for the length of a benchmark."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
import msgspec

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.child import Child
from warmfleet_cli.local.log_file import LogFile
from warmfleet_contracts.decoding import UNDECODABLE

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_LOG_LINES: Final = 20
_TERMINATED: Final = 128 + signal.SIGTERM

Result = TypeVar("Result")


class BenchError(CliError):
    """Raise when a benchmark cannot run; the text has the cause."""


class _Listening(msgspec.Struct):
    event: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A worker or router that `spawned` started; `listening` and `ready` wait for it."""

    name: str
    pid: int
    log: LogFile
    exited: "asyncio.Task[int]"

    async def listening(self) -> str:
        """Wait until its socket is bound; returns its URL.

        Raises:
            BenchError: it exits, or prints nothing for `START_SECONDS`; the text ends with its log.
        """
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not (url := listening_url(_read(self.log.path))):
            await self._pause(deadline)
        return url

    async def ready(self, client: httpx.AsyncClient, seconds: float = START_SECONDS) -> str:
        """Wait up to `seconds` until its /readyz answers 200; returns its URL.

        Raises:
            BenchError: as `listening`.
        """
        url = await self.listening()
        deadline = asyncio.get_running_loop().time() + seconds
        while not await _answers_ready(client, url):
            await self._pause(deadline)
        return url

    async def _pause(self, deadline: float) -> None:
        """Sleep for one poll; raises if the process has ended or the deadline has passed."""
        if self.exited.done():
            raise self._failed(f"exited with {self.exited.result()}")
        if asyncio.get_running_loop().time() > deadline:
            raise self._failed("is not ready in time")
        await asyncio.sleep(_POLL_SECONDS)

    def _failed(self, state: str) -> BenchError:
        tail = "\n".join(self.log.tail(_LOG_LINES))
        return BenchError(f"{self.name} {state}; its log ends with:\n{tail}", exit_code=ExitCode.START_FAILED)


@contextlib.asynccontextmanager
async def spawned(
    name: str, arguments: Sequence[str], *, log_folder: Path, environment: Mapping[str, str]
) -> AsyncIterator[LocalProcess]:
    """Run `python -m <arguments>` until the block or this process ends; does not wait until it is ready.

    `environment` adds to this process's. Output goes to `<log_folder>/<name>.log`.
    """
    log_path = log_folder / f"{name}.log"
    log_path.unlink(missing_ok=True)
    log = LogFile(log_path)
    try:
        child = Child([sys.executable, "-m", *arguments], environment={**os.environ, **environment}, log=log)
        exited = asyncio.create_task(child.wait(), name=f"exit of {name}")
        try:
            yield LocalProcess(name, child.pid, log, exited)
        finally:
            await _stop(child, exited)
    finally:
        log.close()


def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` that cancels `work` on SIGTERM, so that it stops its processes."""

    async def main() -> Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise SystemExit(_TERMINATED) from None


def listening_url(log: bytes) -> str:
    """The address in a server's `listening` line, or "" while it has not written one."""
    for line in log.splitlines():
        with contextlib.suppress(*UNDECODABLE):
            found = msgspec.json.decode(line, type=_Listening)
            if found.event == "listening":
                return f"http://{found.host}:{found.port}"
    return ""


async def _answers_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/readyz", timeout=5.0)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def _stop(child: Child, exited: "asyncio.Task[int]") -> None:
    if exited.done():
        return
    try:
        child.terminate()
        await asyncio.wait({exited}, timeout=STOP_SECONDS)
    finally:
        # Also on a second Ctrl-C, while the server still finishes its streams.
        if not exited.done():
            child.kill()
            await exited


def _read(path: Path) -> bytes:
    return path.read_bytes()
