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
from warmfleet_devcluster.lifecycle.startup_messages import Failure, News, Progress, Ready
from warmfleet_devcluster.network.addresses import node_name
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import DevclusterState, StateFolder
from warmfleet_runtime.process_identity import identify

MAX_SETTINGS_BYTES: Final = 65536


class Supervisor:
    """One life of a devcluster. `run` returns when it was asked to stop and everything has ended."""

    def __init__(self, settings: DevclusterSettings, folder: StateFolder, news: "_Newsroom") -> None:
        self._settings = settings
        self._folder = folder
        self._news = news
        self._cluster = Cluster(settings, folder, lambda text: news.tell(Progress(text)))
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
            self._news.tell(Ready(self._cluster.api_url, time.monotonic() - began))
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
                nodes=[node_name(index) for index in range(self._settings.nodes)],
                components=self._cluster.component_states(),
            )
        )


class _Newsroom:
    """Tells whoever started us, for as long as they listen, and the log always."""

    def __init__(self) -> None:
        self._listening = True

    def tell(self, news: News) -> None:
        line = msgspec.json.encode(news) + b"\n"
        with suppress(OSError):  # a full disk: the log does without this line
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        if not self._listening:
            return
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            self._listening = False
        if isinstance(news, Ready):
            # Nobody reads stdout from here on; what a library still prints belongs into the log.
            self._listening = False
            os.dup2(2, 1)


async def _supervise(settings: DevclusterSettings, folder: StateFolder, news: _Newsroom) -> None:
    supervisor = Supervisor(settings, folder, news)
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
    """Run one devcluster until it is told to end."""
    line = os.read(0, MAX_SETTINGS_BYTES)
    settings = msgspec.json.decode(line, type=DevclusterSettings, dec_hook=_decode_path)
    folder = StateFolder(settings.state)
    news = _Newsroom()
    try:
        with folder.locked():
            folder.end_leftovers()
            folder.clear(keep_logs=False)
            try:
                asyncio.run(_supervise(settings, folder, news))
            finally:
                folder.clear(keep_logs=True)
    except DevclusterError as error:
        news.tell(Failure(type(error).__name__, str(error), error.advice))
        sys.exit(1)


def _decode_path(kind: type, value: Any) -> Any:
    assert kind is Path, kind
    return Path(value)


if __name__ == "__main__":
    main()
