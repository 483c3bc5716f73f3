"""One worker's event stream: is it the right worker, is it ready, are its events complete?

`WorkerStream` decides (pure, the time is an argument), and `stream_follower` acts: it opens the stream again
and again and passes on the messages.

A worker is **ready** for prompts when all of these hold:
- its hello repeated the endpoint's uid and, where a token is configured, proved to hold it,
- the stream is open, or broke off less than `reopen_grace_seconds` ago and no attempt to reopen it has
  failed since: a short interruption changes nothing, a refused connection ends readiness,
- a load report of its present epoch has `total_blocks > 0`. A worker reports load only once its engine
  can compute; the stream itself is opened earlier, and the hello may be late,
- it is not draining.

A ready worker is **precise** while frames arrive and the index has a complete, trusted set of its blocks.
Silence (no frame for 3 s busy or 12 s idle) makes the set suspect and reopens the stream. Three resyncs
within 60 s mean that events cannot be trusted: the worker is routed by load only for `load_only_seconds`.
"""

import hmac
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from warmfleet_contracts.cache.blocks import HASH_BYTES
from warmfleet_contracts.cache.kv_events import (
    BUSY_SILENCE_SECONDS,
    IDLE_SILENCE_SECONDS,
    MAX_COUNT,
    Frame,
    Hello,
    LoadReport,
    Message,
    hello_proof,
)
from warmfleet_contracts.cache.resident import PositionGapError, SetMismatchError
from warmfleet_contracts.cache.start_phases import StartPhases
from warmfleet_contracts.errors import ContractError
from warmfleet_contracts.names import MAX_MODEL_NAME_CHARS
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import HelloRefusedError
from warmfleet_router.workers.prefix_index import IndexFullError, PrefixIndex, Suspicion

MAX_SERVED_NAMES: Final = 64
MAX_DIGEST_CHARS: Final = 128
MAX_EPOCH_CHARS: Final = 128
NO_LOAD: Final = LoadReport()

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Every window of the event streams."""

    hello_seconds: float = 60.0
    """A worker that is loading its model may take this long before its hello; then the stream is reopened."""
    busy_silence_seconds: float = BUSY_SILENCE_SECONDS
    idle_silence_seconds: float = IDLE_SILENCE_SECONDS
    reopen_grace_seconds: float = 1.0
    """How long a worker stays ready while its stream is being reopened."""
    first_backoff_seconds: float = 0.05
    longest_backoff_seconds: float = 5.0
    newcomer_backoff_seconds: float = 0.5
    """The longest for a worker that has not sent a hello yet: its pod has an address seconds before it
    listens, and requests wait for it."""
    newcomer_seconds: float = 120.0
    """From then on it is no newcomer but a worker that does not start."""
    settled_seconds: float = 5.0
    """A stream that lived this long resets the backoff."""
    resync_window_seconds: float = 60.0
    resync_limit: int = 3
    """This many resyncs within the window turn the worker load-only."""
    load_only_seconds: float = 60.0
    forget_after_seconds: float = 60.0
    """A worker unreachable for this long is dropped from the index; its endpoint is still tried."""


@dataclass(slots=True)
class StreamCounts:
    """What happened on one worker's stream, for metrics. All of them only rise."""

    opened: int = 0
    failed: int = 0
    hellos_refused: int = 0
    snapshots: int = 0
    resyncs: int = 0
    load_only: int = 0
    """Times the worker was turned load-only."""
    silences: int = 0


class ResyncNeededError(ContractError):
    """The stream goes on from here only after it was reopened."""


class WorkerStream:
    """What the router knows of one worker from the messages of its stream. No I/O, no clock.

    `follow` reports to it what happens; `Fleet` reads from it whether the worker is ready and current.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        index: PrefixIndex,
        timing: StreamTiming,
        on_frame: Callable[[str, Frame], None] = lambda _uid, _frame: None,
        on_change: Callable[[], None] = lambda: None,
        *,
        on_ended: Callable[[str, str], None] = lambda _uid, _epoch: None,
        on_event: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a stream that is not open yet.

        `on_frame(uid, frame)` is called for each frame, before the index applies it, `on_change` when the
        load is reported or the worker is lost, `on_ended(uid, epoch)` when an epoch ended and the worker was
        not draining; it may be called more than once for an epoch. `on_event` is called after each event of
        the stream: what the queries return may be something else since.
        """
        self._endpoint = endpoint
        self._on_frame = on_frame
        self._on_change = on_change
        self._on_ended = on_ended
        self._on_event = on_event
        self.counts = StreamCounts()
        self.hello: Hello | None = None
        """The last verified hello; None before the first and after an impostor's."""
        self.load: LoadReport = NO_LOAD
        self.load_at: float | None = None
        self.start = StartPhases()
        """How long the start of its process took, as it reported it last."""
        self.closed_reason = "not connected yet"
        """Why the stream is not open; empty while it is."""
        self._index = index
        self._timing = timing
        self._nonce = b""
        self._verified = False  # the hello of the connection that is open now
        self._last_frame_at: float | None = None
        self._last_message_at: float | None = None  # the last message
        self._closed_by_worker = False  # it ended or refused the stream since then: its process is alive
        self._lost_at: float | None = None
        self._reopening = False  # lost, and no attempt to reopen has failed yet
        self._resyncs: deque[float] = deque(maxlen=timing.resync_limit)
        self._resyncing = False  # counted already, and not precise again yet
        self._load_only_until: float | None = None  # events are ignored: they kept contradicting themselves

    @property
    def endpoint(self) -> Endpoint:
        """The worker as discovery describes it."""
        return self._endpoint

    @endpoint.setter
    def endpoint(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._on_event()

    # Events.

    def opening(self, nonce: bytes) -> tuple[str, int]:
        """The stream is about to be opened with `nonce`; returns the `(epoch, after)` to request."""
        self._nonce = nonce
        self._verified = False
        self.counts.opened += 1
        self._on_event()
        return self._index.position(self.endpoint.uid) or ("", 0)

    def received(self, message: Message, now: float) -> None:
        """Take one message.

        Raises:
            HelloRefusedError: this is not the endpoint's worker.
            ResyncNeededError: the set is lost; reopen the stream.
            ContractError: the message has no place here; reopen the stream.
        """
        self._last_message_at, self._closed_by_worker = now, False
        try:
            self._take(message, now)
        finally:
            self._on_event()

    def _take(self, message: Message, now: float) -> None:
        if isinstance(message, Hello):
            self._accept_hello(message, now)
            return
        if not self._verified or self.hello is None:
            raise HelloRefusedError("a frame arrived before the hello")
        if message.epoch != self.hello.epoch:
            raise ContractError(f"frame of epoch {message.epoch!r} on a stream of epoch {self.hello.epoch!r}")
        if self._leave_load_only(now):
            raise ResyncNeededError("the quiet period is over: trying events again")
        self._last_frame_at = now
        self._on_frame(self.endpoint.uid, message)
        if message.start is not None:
            self.start = message.start
        if message.load is not None:
            self.load = message.load
            self.load_at = now
            self._on_change()
        if self._load_only_until is None:
            self._index_frame(message, now)

    def lost(self, reason: str, now: float, *, is_silent: bool = False, is_down: bool = False) -> None:
        """The stream ended, failed, or could not be opened.

        `is_silent`: without any byte from the worker; `is_down`: no connection could be made.
        """
        if is_down:
            self.ended()
        self.closed_reason = reason
        self._closed_by_worker = not is_silent
        self._reopening = self._verified
        if self._verified:
            self._lost_at = now
        else:
            self.counts.failed += 1
            self._index.suspect(self.endpoint.uid, Suspicion.SILENT)
        self._verified = False
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at >= self._timing.forget_after_seconds:
            self._index.forget(self.endpoint.uid)
        self._on_event()
        self._on_change()

    def ended(self) -> None:
        """The process of the last hello is gone."""
        if self.hello is not None and not self.load.draining:
            self._on_ended(self.endpoint.uid, self.hello.epoch)

    def silent(self) -> None:
        """No frame for `silence_seconds`: the set is suspect until the stream proves otherwise."""
        self.counts.silences += 1
        self._index.suspect(self.endpoint.uid, Suspicion.SILENT)
        self._on_event()

    # Queries.

    def unready_reason(self, now: float) -> str:
        """Why no prompts may be sent; empty if they may. See the module's docstring."""
        if self.hello is None or not (self._verified or self._in_grace(now)):
            return self.closed_reason or "waiting for the hello"
        if self.load.total_blocks <= 0:
            return "the engine is not ready yet"
        return "draining" if self.load.draining else ""

    def seconds_since_last_message(self, now: float) -> float:
        """Infinite before the first message; 0 if the worker closed the stream since."""
        if self._closed_by_worker:
            return 0.0
        return now - self._last_message_at if self._last_message_at is not None else float("inf")

    def silence_seconds(self) -> float:
        """How long the worker may send nothing from now on."""
        return self._frame_silence_seconds() if self._verified else self._timing.hello_seconds

    def is_current(self, now: float) -> bool:
        """Whether frames still arrive: the stream is open, or just broke off, and is not silent for too long.

        The index of a worker that is not current is not used, even before `follow` notices the silence.
        """
        if not (self._verified or self._in_grace(now)):
            return False
        return self._last_frame_at is None or now - self._last_frame_at <= self._frame_silence_seconds()

    def unchanged_until(self, now: float) -> float:
        """Until when `unready_reason` and `is_current` stay as they are at `now`, without an event."""
        ends = [math.inf]
        if self._in_grace(now) and self._lost_at is not None:
            ends.append(self._lost_at + self._timing.reopen_grace_seconds)
        if self._last_frame_at is not None and self.is_current(now):
            ends.append(self._last_frame_at + self._frame_silence_seconds())
        return min(ends)

    # Inside.

    def _frame_silence_seconds(self) -> float:
        busy = self.load.running_sequences + self.load.waiting_sequences > 0
        return self._timing.busy_silence_seconds if busy else self._timing.idle_silence_seconds

    def _accept_hello(self, hello: Hello, now: float) -> None:
        if self._verified:
            raise ContractError("a second hello on one stream")
        try:
            verify_hello(hello, self.endpoint, self._nonce)
        except ContractError:
            self.counts.hellos_refused += 1
            self.hello = None
            self._index.forget(self.endpoint.uid)
            raise
        if self.hello is None or self.hello.epoch != hello.epoch:
            # Another engine process: the load that the last one reported does not count.
            self.ended()
            self.load = NO_LOAD
            self.load_at = None
            self.start = StartPhases()
        self._leave_load_only(now)
        self.hello = hello
        self.closed_reason = ""
        self._verified = True
        self._reopening = False
        self._lost_at = None
        self._last_frame_at = now
        if self._load_only_until is None:
            self._index.connected(self.endpoint.uid, hello.epoch)

    def _index_frame(self, frame: Frame, now: float) -> None:
        uid = self.endpoint.uid
        # A snapshot over a trusted set: the worker cannot replay from its position.
        unable_to_replay = (
            frame.snapshot_left is not None
            and not self._resyncing
            and self._index.suspicion(uid) is Suspicion.REPLAYING
        )
        try:
            self._index.apply(uid, frame)
        except IndexFullError as error:
            _log.warning(
                "worker not indexed, chosen by load only",
                uid=uid,
                name=self.endpoint.name,
                reason=str(error),
                seconds=self._timing.load_only_seconds,
            )
            self._turn_load_only(now)
            return
        except (PositionGapError, SetMismatchError) as error:
            self._resync(now)
            if self._load_only_until is None:
                raise ResyncNeededError(str(error)) from error
            return
        if frame.snapshot_left == 0:
            self.counts.snapshots += 1
        if unable_to_replay:
            self._resync(now)
        elif self._index.is_precise(uid):
            self._resyncing = False

    def _resync(self, now: float) -> None:
        self.counts.resyncs += 1
        self._resyncing = True
        self._resyncs.append(now)
        full = len(self._resyncs) == self._timing.resync_limit
        if full and now - self._resyncs[0] <= self._timing.resync_window_seconds:
            self._turn_load_only(now)

    def _turn_load_only(self, now: float) -> None:
        self.counts.load_only += 1
        self._resyncs.clear()
        self._resyncing = False
        self._load_only_until = now + self._timing.load_only_seconds
        self._index.forget(self.endpoint.uid)

    def _leave_load_only(self, now: float) -> bool:
        if self._load_only_until is None or now < self._load_only_until:
            return False
        self._load_only_until = None
        return True

    def _in_grace(self, now: float) -> bool:
        return (
            self._reopening
            and self._lost_at is not None
            and now - self._lost_at < self._timing.reopen_grace_seconds
        )


def verify_hello(hello: Hello, endpoint: Endpoint, nonce: bytes) -> None:
    """Check that `hello` comes from the endpoint's worker. The proof is compared in constant time.

    Raises:
        HelloRefusedError: another uid, no proof of the token, or fields that no worker sends.
    """
    if hello.uid != endpoint.uid:
        raise HelloRefusedError(f"the process at endpoint {endpoint.uid!r} is another worker")
    if endpoint.token:
        proof = hello_proof(endpoint.token, nonce=nonce, uid=hello.uid, identity=hello.identity)
        if not hmac.compare_digest(proof, hello.proof):
            raise HelloRefusedError(f"the process at endpoint {endpoint.uid!r} does not hold its token")
    sane = (
        len(hello.identity) == HASH_BYTES
        and 0 < len(hello.epoch) <= MAX_EPOCH_CHARS
        and 0 < hello.block_size_tokens <= MAX_COUNT
        and 0 <= hello.window_tokens <= MAX_COUNT
        and 0 < hello.max_model_length_tokens <= MAX_COUNT
        and len(hello.served_names) <= MAX_SERVED_NAMES
        # No pattern: a worker that no deployment names has the name of its model's folder.
        and all(0 < len(name) <= MAX_MODEL_NAME_CHARS for name in hello.served_names)
        and len(hello.tokenizer_digest) <= MAX_DIGEST_CHARS
        and len(hello.model_digest or "") <= MAX_DIGEST_CHARS
    )
    if not sane:
        raise HelloRefusedError(f"the hello of endpoint {endpoint.uid!r} has impossible fields")
