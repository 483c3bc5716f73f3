"""Which workers stopped sending in the middle of a response, and which only take long.

A worker sends on two channels: its responses, and the event stream, with a frame at least every second from a
request's arrival to its response's end, during prefill too. Silence on both for `hung_seconds` means that the
process is stopped, cut off or stuck; on the response alone, for `answer_seconds`, that this connection is
lost: streams carry a ping every 10 s.

Time is counted in ticks of the router's own event loop. A router that was stopped, or got no CPU, counts one
tick when it goes on, and gives up no worker.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

TICK_SECONDS: Final = 0.25

_log = structlog.get_logger("warmfleet.router.silence")


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """How long a worker may send nothing."""

    hung_seconds: float = 3.0
    """On its response and on its event stream."""
    answer_seconds: float = 30.0
    """On a response stream while the event stream goes on: three pings missed."""


class ResponseKind(Enum):
    """What a response is like: it decides which pauses are normal."""

    SHORT = "short"
    """Small; its body comes without long pauses."""
    WHOLE = "whole"
    """A completion in one body, sent at its end; until then the event stream shows that it is busy."""
    STREAM = "stream"
    """A completion as an event stream: as `WHOLE`, and its body has no long pauses, because of the pings."""
    EVENTS = "events"
    """The KV event stream: its reader keeps the deadlines."""


class WatchedRead:
    """What is read of one response: its headers, or its body piece by piece. A piece costs two assignments.

    Complete when made: whether its pauses count, and what ends it, follow from what is read.
    """

    __slots__ = ("_began_at_tick", "_watch", "answer_ticks", "give_up", "is_busy", "uid")

    def __init__(
        self,
        watch: "LivenessWatch",
        uid: str,
        kind: ResponseKind,
        give_up: Callable[[], None],
        *,
        is_body: bool,
    ) -> None:
        self._watch = watch
        self._began_at_tick: int | None = None  # between two pieces
        self.uid = uid
        self.is_busy = kind in {ResponseKind.WHOLE, ResponseKind.STREAM}
        """Whether a worker that is alive sends events meanwhile."""
        self.give_up = give_up
        """Ends the read; called at most once per piece."""
        has_no_pauses = is_body and kind in {ResponseKind.SHORT, ResponseKind.STREAM}
        self.answer_ticks = watch.answer_ticks if has_no_pauses else None
        """How long a piece may take while the worker itself is alive; None means without a bound."""

    @property
    def quiet_ticks(self) -> int | None:
        """For how many ticks a piece has been waited for; None between two pieces."""
        return None if self._began_at_tick is None else self._watch.tick - self._began_at_tick

    def begin(self) -> None:
        """A piece is waited for from now on."""
        self._began_at_tick = self._watch.tick

    def end(self) -> None:
        """It came, or is no longer waited for."""
        self._began_at_tick = None


class LivenessWatch:
    """The reads of all responses that are waited for; a `LivenessSweeper` ends those of silent workers."""

    def __init__(self, settings: LivenessSettings) -> None:
        self.tick = 0
        self.answer_ticks = _ticks(settings.answer_seconds)
        self._settings = settings
        self._hung_ticks = _ticks(settings.hung_seconds)
        self._reads: set[WatchedRead] = set()

    @contextmanager
    def headers(self, uid: str, kind: ResponseKind, give_up: Callable[[], None]) -> Iterator[None]:
        """Watch the wait for the headers of a response, which begins now."""
        with self._watched(WatchedRead(self, uid, kind, give_up, is_body=False), kind) as read:
            read.begin()
            yield

    @contextmanager
    def body(self, uid: str, kind: ResponseKind, give_up: Callable[[], None]) -> Iterator[WatchedRead]:
        """Watch the body of a response: its reader calls `begin` and `end` around each piece."""
        with self._watched(WatchedRead(self, uid, kind, give_up, is_body=True), kind) as read:
            yield read

    def sweep(self, worker_silence: Callable[[str], float], on_hung: Callable[[str], None]) -> None:
        """One tick: end every read that has waited for too long.

        `worker_silence(uid)` returns the seconds since a worker's last message on its event stream;
        `on_hung(uid)` is called for a worker that is silent on both channels.
        """
        self.tick += 1
        hung: dict[str, bool] = {}
        for read in list(self._reads):
            quiet, uid = read.quiet_ticks, read.uid
            if quiet is None:
                continue
            if read.is_busy and quiet >= self._hung_ticks and uid not in hung:
                hung[uid] = worker_silence(uid) >= self._settings.hung_seconds
                if hung[uid]:
                    on_hung(uid)
            is_hung = read.is_busy and quiet >= self._hung_ticks and hung[uid]
            if is_hung or (read.answer_ticks is not None and quiet >= read.answer_ticks):
                read.end()
                read.give_up()

    @contextmanager
    def _watched(self, read: WatchedRead, kind: ResponseKind) -> Iterator[WatchedRead]:
        if kind is not ResponseKind.EVENTS:
            self._reads.add(read)
        try:
            yield read
        finally:
            self._reads.discard(read)


class LivenessSweeper:
    """Sweeps a `LivenessWatch` once a tick, between `start` and `stop`. A router has one."""

    def __init__(
        self,
        watch: LivenessWatch,
        *,
        worker_silence: Callable[[str], float],
        on_hung: Callable[[str], None],
    ) -> None:
        """Callbacks as `LivenessWatch.sweep` takes them."""
        self._watch = watch
        self._worker_silence = worker_silence
        self._on_hung = on_hung
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin the ticks; returns at once."""
        self._task = asyncio.create_task(self._run(), name="liveness sweeper")

    async def stop(self) -> None:
        """End them."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                self._watch.sweep(self._worker_silence, self._on_hung)
            except Exception:  # noqa: BLE001
                # Without it no hung worker would be noticed until the router is restarted.
                _log.exception("silence sweep failed")


def _ticks(seconds: float) -> int:
    return max(round(seconds / TICK_SECONDS), 1)
