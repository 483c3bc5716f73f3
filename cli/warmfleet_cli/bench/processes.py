"""Worker and router processes for the length of a benchmark: started, waited for, and always stopped."""

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

from warmfleet_contracts.errors import WarmfleetError

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_LOG_TAIL_BYTES: Final = 2000
_TERMINATED: Final = 128 + signal.SIGTERM

Result = TypeVar("Result")


class BenchError(WarmfleetError):
    """A benchmark cannot be carried out; the text says what is in the way."""


class _Listening(msgspec.Struct):
    event: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A server of ours on the loopback interface."""

    name: str
    url: str
    log_path: Path


@contextlib.asynccontextmanager
async def running(
    name: str,
    arguments: Sequence[str],
    *,
    client: httpx.AsyncClient,
    log_folder: Path,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalProcess]:
    """Run `python -m <arguments>` until the block ends; entered once its /readyz answers 200.

    Output goes to `<log_folder>/<name>.log`.

    Raises:
        BenchError: the process exits or stays unready for `START_SECONDS`; the text ends with its log.
    """
    log_path = log_folder / f"{name}.log"
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    try:
        url = await _ready_url(name, process, client, log_path)
        yield LocalProcess(name=name, url=url, log_path=log_path)
    finally:
        await _stop(process)


def run_to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` that also stops what `work` started when this process is asked to terminate."""

    async def main() -> Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise SystemExit(_TERMINATED) from None


async def _ready_url(
    name: str, process: asyncio.subprocess.Process, client: httpx.AsyncClient, log_path: Path
) -> str:
    url = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while process.returncode is None:
                url = url or listening_url(_read(log_path))
                if url and await _answers_ready(client, url):
                    return url
                await asyncio.sleep(_POLL_SECONDS)
    state = "is not ready" if process.returncode is None else f"exited with {process.returncode}"
    tail = _read(log_path)[-_LOG_TAIL_BYTES:].decode(errors="replace")
    raise BenchError(f"{name} {state}; its log ends with:\n{tail}")


def listening_url(log: bytes) -> str:
    """The address in a server's `listening` line, or "" while it has not written one."""
    for line in log.splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found = msgspec.json.decode(line, type=_Listening)
            if found.event == "listening":
                return f"http://{found.host}:{found.port}"
    return ""


async def _answers_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/readyz", timeout=5.0)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    try:
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except (ProcessLookupError, TimeoutError):
        pass
    finally:
        # Also on a second Ctrl-C while the server still finishes its streams.
        if process.returncode is None:
            process.kill()
            await process.wait()


def _read(path: Path) -> bytes:
    return path.read_bytes()
