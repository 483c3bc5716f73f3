"""KV cache events for every router: one mirror of the resident set, many subscribers.

The engine's reports are netted for up to 20 ms into one frame. Snapshots come from the mirror, so the
engine never waits for a router; a subscriber that reads too slowly loses its stream, the others keep theirs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_contracts.cache.kv_events import (
    BUSY_HEARTBEAT_SECONDS,
    COALESCE_SECONDS,
    IDLE_HEARTBEAT_SECONDS,
    Frame,
    LoadReport,
    MessageReader,
    encode_message,
)
from warmfleet_contracts.cache.resident import ChangeBuffer, ResidentSet
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_worker.engine.messages import EngineReady, StepReport
from warmfleet_worker.server.plain_answers import PlainAnswers

MAX_REPLAY_FRAMES: Final = 1024
"""Twenty seconds of a busy worker: a router that was gone for longer starts with a snapshot."""
MAX_REPLAY_BYTES: Final = 1024 * 1024
"""The snapshot of 65,536 blocks; a longer replay would not be the shorter way."""
MAX_SUBSCRIBER_BYTES: Final = 8 * 1024 * 1024

log = structlog.get_logger("warmfleet.worker.events")


@dataclass(eq=False)
class Subscriber:
    """One open event stream: frames that are not yet sent, bounded in bytes."""

    version: int = CONTRACT_VERSION
    frames: deque[bytes] = field(default_factory=deque)
    queued_bytes: int = 0
    ended: bool = False
    """Closed by the hub, or for slow reading: nothing more is queued."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: bytes) -> bool:
        """Queue a frame; False if that was one too many and the stream ends."""
        self.queued_bytes += len(frame)
        if self.queued_bytes > MAX_SUBSCRIBER_BYTES:
            self.frames.clear()
            self.end()
            return False
        self.frames.append(frame)
        self.wake.set()
        return True

    def end(self) -> None:
        self.ended = True
        self.wake.set()

    async def take(self) -> bytes | None:
        """Everything queued, waiting for the first of it; None once the stream has ended."""
        while not self.frames:
            if self.ended:
                return None
            self.wake.clear()
            await self.wake.wait()
        data = b"".join(self.frames)
        self.frames.clear()
        self.queued_bytes = 0
        return data


class EncodedFrame:
    """A frame as its bytes, which take a fifth of the object's memory."""

    __slots__ = ("_data", "seq")

    def __init__(self, frame: Frame) -> None:
        self.seq = frame.seq
        self._data = encode_message(frame)

    def encoded(self, version: int = CONTRACT_VERSION) -> bytes:
        """The frame in `version`; made anew for routers of another release."""
        if version == CONTRACT_VERSION:
            return self._data
        return b"".join(encode_message(message, version) for message in MessageReader().feed(self._data))


class ReplayBuffer:
    """The last event frames, without gaps, bounded in number and bytes."""

    def __init__(self) -> None:
        self._frames: deque[EncodedFrame] = deque()
        self._bytes = 0

    def append(self, frame: EncodedFrame) -> None:
        self._frames.append(frame)
        self._bytes += len(frame.encoded())
        while len(self._frames) > MAX_REPLAY_FRAMES or self._bytes > MAX_REPLAY_BYTES:
            self._bytes -= len(self._frames.popleft().encoded())

    def after(self, seq: int, newest: int) -> list[EncodedFrame] | None:
        """Frames `seq + 1` to `newest`; None if some of them are gone or `seq` lies in the future."""
        missed = newest - seq
        if missed < 0 or missed > len(self._frames):
            return None
        return [frame for frame in self._frames if frame.seq > seq]


class EventHub:
    """Turns engine reports into event frames for its subscribers. Used from one event loop only."""

    def __init__(
        self,
        on_dropped: Callable[[], None] = lambda: None,
        *,
        start: Callable[[], StartPhases] = StartPhases,
    ) -> None:
        """`start` returns the phases of this worker's start, as far as they are over."""
        self._start_phases = start
        self._sent_start = StartPhases()
        self.plain_answers = PlainAnswers()
        """Those that are open, for the load reports."""
        self._on_dropped = on_dropped
        self._mirror = ResidentSet("")
        self._changes = ChangeBuffer()
        self._load = LoadReport()
        self._reported = LoadReport()  # as the engine sent it
        self._replay = ReplayBuffer()
        self._subscribers: set[Subscriber] = set()
        self._flush_handle: asyncio.TimerHandle | None = None
        self._requests = 0
        self._draining = False
        self._stalled = False
        self._warming = False
        self._closed = False
        self._started = asyncio.Event()

    @property
    def position(self) -> str:
        """`epoch:seq` including everything reported so far, sent or not."""
        return f"{self._mirror.epoch}:{self._mirror.seq + bool(self._changes)}"

    @property
    def load(self) -> LoadReport:
        """The latest load report, without its plain answers."""
        return self._load

    @property
    def mirror(self) -> ResidentSet:
        """The resident set as of the last frame."""
        return self._mirror

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    def start(self, ready: EngineReady) -> None:
        """Begin to send: the engine is ready."""
        self._mirror = ResidentSet(ready.epoch)
        self._reported = LoadReport(
            max_running_sequences=ready.max_running_sequences, total_blocks=ready.total_blocks
        )
        self._load = self._marked(self._reported)
        self._started.set()
        self._schedule_heartbeat()

    def apply(self, report: StepReport) -> None:
        """Take in one engine report; what it changed goes out within `COALESCE_SECONDS`."""
        if report.cleared:
            self._changes.clear()
        # The order in which things happened inside one step: a block is evicted before another is stored.
        for block_hash in report.removed:
            self._changes.remove(block_hash)
        for block_hash in report.stored:
            self._changes.store(block_hash)
        self._reported = report.load
        load = self._marked(report.load)
        has_first_token = self.plain_answers.apply(report.updates)
        urgent = has_first_token or bool(self._changes) or _differs(load, self._load)
        self._load = load
        if urgent:
            self._flush_within(COALESCE_SECONDS)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is open, send a frame at least once per busy heartbeat."""
        self._requests += 1
        if self._started.is_set() and not self._closed:
            self._flush_within(BUSY_HEARTBEAT_SECONDS)
        try:
            yield
        finally:
            self._requests -= 1

    def drain(self) -> None:
        """Send at once that this worker is draining."""
        self._draining = True
        self._load = self._marked(self._load)
        if self._started.is_set():
            self._flush()

    def stall(self, *, stalled: bool) -> None:
        """Send at once that the engine has stalled, or that it has recovered."""
        self._stalled = stalled
        self._load = self._marked(self._reported)
        if self._started.is_set():
            self._flush()

    def warm_up(self, *, warming: bool) -> None:
        """Send at once that this worker takes no requests yet, or that it does."""
        self._warming = warming
        self._load = self._marked(self._reported)
        if self._started.is_set():
            self._flush()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._started.set()
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        for subscriber in self._subscribers:
            subscriber.end()

    async def subscribe(
        self, epoch: str, after: int | None, version: int = CONTRACT_VERSION
    ) -> AsyncGenerator[bytes, None]:
        """Frames for one router: those it missed or a snapshot, then live frames, until the stream ends."""
        await self._started.wait()
        if self._closed:
            return
        subscriber = Subscriber(version)
        self._subscribers.add(subscriber)
        try:
            # Computed in the same step as joining: live frames continue exactly where these end.
            for data in self._catch_up(epoch, after, version):
                yield data
            while (queued := await subscriber.take()) is not None:
                yield queued
        finally:
            self._subscribers.discard(subscriber)

    def _catch_up(self, epoch: str, after: int | None, version: int) -> list[bytes]:
        if epoch == self._mirror.epoch and after is not None:
            missed = self._replay.after(after, self._mirror.seq)
            if missed is not None:
                load = EncodedFrame(self._next_load_frame(self._start_so_far()))
                return [frame.encoded(version) for frame in (*missed, load)]
        frames = list(self._mirror.snapshot(self._next_load_report()))
        if (start := self._start_so_far()) is not None:
            frames.append(self._next_load_frame(start))
        return [encode_message(frame, version) for frame in frames]

    def _next_load_frame(self, start: StartPhases | None) -> Frame:
        mirror = self._mirror
        return Frame(
            epoch=mirror.epoch,
            seq=mirror.seq,
            load=self._next_load_report(),
            start=start,
            digest=mirror.digest,
        )

    def _start_so_far(self) -> StartPhases | None:
        """None before the first phase is over."""
        phases = self._start_phases()
        return None if phases == StartPhases() else phases

    def _next_start(self) -> StartPhases | None:
        """The phases, if there is one that the subscribers of now do not have."""
        phases = self._start_phases()
        if phases == self._sent_start:
            return None
        self._sent_start = phases
        return phases

    def _next_load_report(self) -> LoadReport:
        return msgspec.structs.replace(self._load, plain_answers=self.plain_answers.next_report())

    def _flush_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._flush_handle is not None:
            if self._flush_handle.when() <= loop.time() + seconds:
                return
            self._flush_handle.cancel()
        self._flush_handle = loop.call_later(seconds, self._flush)

    def _schedule_heartbeat(self) -> None:
        busy = self._requests or self._load.running_sequences or self._load.waiting_sequences
        self._flush_within(BUSY_HEARTBEAT_SECONDS if busy else IDLE_HEARTBEAT_SECONDS)

    def _flush(self) -> None:
        """Send one frame: the netted changes, or load alone."""
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._closed:
            return
        if self._changes:
            cleared, stored, removed = self._changes.take()
            seq = self._mirror.seq + 1
            self._mirror.change(seq, cleared=cleared, stored=stored, removed=removed)
            frame = EncodedFrame(
                Frame(
                    epoch=self._mirror.epoch,
                    seq=seq,
                    stored=stored,
                    removed=removed,
                    cleared=cleared,
                    load=self._next_load_report(),
                    start=self._next_start(),
                    digest=self._mirror.digest,
                )
            )
            self._replay.append(frame)
        else:
            frame = EncodedFrame(self._next_load_frame(self._next_start()))
        versions = {subscriber.version for subscriber in self._subscribers}
        encoded = {version: frame.encoded(version) for version in versions}
        for subscriber in self._subscribers:
            if not subscriber.ended and not subscriber.put(encoded[subscriber.version]):
                log.warning("event stream closed: its router reads too slowly")
                self._on_dropped()
        self._schedule_heartbeat()

    def _marked(self, load: LoadReport) -> LoadReport:
        """`load` as routers get it: they send nothing to a worker without blocks, and none that drains."""
        return msgspec.structs.replace(
            load,
            draining=load.draining or self._draining,
            total_blocks=0 if self._stalled or self._warming else load.total_blocks,
        )


def _differs(load: LoadReport, previous: LoadReport) -> bool:
    """Whether a router needs this load before the next heartbeat."""
    return (
        load.running_sequences != previous.running_sequences
        or load.waiting_sequences != previous.waiting_sequences
        or load.admitted_dispatches != previous.admitted_dispatches
        or load.open_dispatches != previous.open_dispatches
        or load.draining != previous.draining
        or load.total_blocks != previous.total_blocks
    )
