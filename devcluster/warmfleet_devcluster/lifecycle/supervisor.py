"""The supervisor of one devcluster: starts all of it, restarts nothing, and ends everything together.

`python -m warmfleet_devcluster.lifecycle.supervisor` reads settings as one JSON line from its standard input
and writes messages to its standard output, one JSON object per line, until the devcluster is ready. SIGTERM
or SIGINT ends it; attached, the end of its standard input does, too.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from warmfleet_devcluster.errors import DevclusterError
from warmfleet_devcluster.lifecycle.cluster import Cluster, ended_early
from warmfleet_devcluster.lifecycle.startup_messages import Failure, Progress, Ready, StartupMessage
from warmfleet_devcluster.network.addresses import node_name
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import DevclusterState, StateFolder
from warmfleet_runtime.process_identity import identify

MAX_SETTINGS_BYTES: Final = 65536


class Supervisor:
    """Runs one devcluster. `run` returns after `request_stop`, when every process has ended."""

    def __init__(self, settings: DevclusterSettings, folder: StateFolder, messages: "_MessageWriter") -> None:
        self._settings = settings
        self._folder = folder
        self._messages = messages
        self._cluster = Cluster(settings, folder, lambda text: messages.write(Progress(text)))
        self._stop = asyncio.Event()

    def request_stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Start, wait for the end, stop.

        Raises:
            DevclusterError: it did not start, or a component ended; everything else has ended with it.
        """
        began = time.monotonic()
        self._save("Starting")
        stop = asyncio.create_task(self._stop.wait())
        try:
            start = asyncio.create_task(self._cluster.start())
            await asyncio.wait([start, stop], return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                await asyncio.wait([start])
                return
            start.result()
            self._save("Ready")
            self._messages.write(Ready(self._cluster.api_url, time.monotonic() - began))
            await self._until_end(stop)
        finally:
            stop.cancel()
            self._save("Stopping")
            await self._cluster.stop()

    async def _until_end(self, stop: "asyncio.Task[Any]") -> None:
        ended = asyncio.create_task(self._cluster.ended_component())
        await asyncio.wait([stop, ended], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            ended.cancel()
            return
        component = ended.result()
        raise ended_early(component, self._folder)

    def _save(self, phase: Literal["Starting", "Ready", "Stopping"]) -> None:
        own = identify(os.getpid())
        assert own is not None
        self._folder.write(
            DevclusterState(
                phase=phase,
                supervisor=own,
                api_url=self._cluster.api_url,
                nodes=[node_name(index) for index in range(self._settings.addressed_nodes)],
                components=self._cluster.component_states(),
            )
        )


class _MessageWriter:
    """Writes startup messages to standard output until the starter has read Ready, and to the log always."""

    def __init__(self) -> None:
        self._starter_reads = True

    def write(self, message: StartupMessage) -> None:
        line = msgspec.json.encode(message) + b"\n"
        with suppress(OSError):  # a full disk loses this line of the log
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        if not self._starter_reads:
            return
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._starter_reads = False
        if isinstance(message, Ready):
            # The starter reads no further: what a library prints later goes to the log.
            self._starter_reads = False
            os.dup2(2, 1)


async def _supervise(settings: DevclusterSettings, folder: StateFolder, messages: _MessageWriter) -> None:
    supervisor = Supervisor(settings, folder, messages)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.request_stop)
    if settings.attached:
        # Readable means closed: nothing comes after the settings.
        loop.add_reader(0, supervisor.request_stop)
    try:
        await supervisor.run()
    finally:
        if settings.attached:
            loop.remove_reader(0)


def main() -> None:
    """Run one devcluster until it is stopped."""
    line = os.read(0, MAX_SETTINGS_BYTES)
    settings = msgspec.json.decode(line, type=DevclusterSettings, dec_hook=_decode_path)
    folder = StateFolder(settings.state)
    messages = _MessageWriter()
    try:
        with folder.locked():
            folder.end_leftovers()
            folder.clear(keep_logs=False)
            try:
                asyncio.run(_supervise(settings, folder, messages))
            finally:
                folder.clear(keep_logs=True)
    except DevclusterError as error:
        messages.write(Failure(type(error).__name__, str(error), error.advice))
        sys.exit(1)


def _decode_path(kind: type, value: Any) -> Any:
    assert kind is Path, kind
    return Path(value)


if __name__ == "__main__":
    main()
