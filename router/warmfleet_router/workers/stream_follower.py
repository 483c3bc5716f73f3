"""Opens one worker's event stream again and again, and passes its messages on to the `WorkerStream`."""

import asyncio
import contextlib
import math
import random
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

import structlog

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_contracts.cache.kv_events import MessageReader
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.event_stream import StreamTiming, WorkerStream

NONCE_BYTES: Final = 16
MAX_REASON_CHARS: Final = 256
"""Of why a stream was lost: what a worker sent may be quoted in it, and is shown wherever the worker is."""

_log = structlog.get_logger()


class EventSource(Protocol):
    """Opens event streams; the one seam for I/O."""

    def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes, versions: AbstractSet[int]
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of `GET /internal/kv-events`, cut anywhere. `epoch` "" asks for a snapshot.

        `versions` are those of the contract that the caller reads.

        Closing the generator closes the connection. It waits for the next bytes without a deadline: the
        caller has one.

        Raises:
            StreamUnavailableError: the worker cannot be reached, refuses, or the transport broke.
        """
        ...


async def follow(
    stream: WorkerStream,
    source: EventSource,
    *,
    timing: StreamTiming,
    clock: Callable[[], float],
    versions: AbstractSet[int] = ACCEPTED_VERSIONS,
) -> None:
    """Read `stream` until cancelled: open, read, and after any fault open again.

    The backoff doubles from `first_backoff_seconds` to `longest_backoff_seconds`, each wait drawn between
    half of it and all of it, so that routers do not reconnect in step. That of a newcomer stays shorter.
    """
    backoff_seconds, began_at = timing.first_backoff_seconds, clock()
    while True:
        opened_at = clock()
        end = await _read_once(stream, source, clock, versions)
        now, reason = clock(), end.reason[:MAX_REASON_CHARS]
        if reason != stream.closed_reason:
            _log.info("event stream lost", uid=stream.endpoint.uid, name=stream.endpoint.name, reason=reason)
        stream.lost(reason, now, is_silent=end.is_silent, is_down=end.is_down)
        if now - opened_at >= timing.settled_seconds:
            backoff_seconds = timing.first_backoff_seconds
        await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        backoff_seconds = min(backoff_seconds * 2, longest_backoff_seconds(stream, now - began_at, timing))


def longest_backoff_seconds(stream: WorkerStream, followed_seconds: float, timing: StreamTiming) -> float:
    """What the backoff grows to for a stream that has been followed for so long."""
    if stream.hello is None and followed_seconds < timing.newcomer_seconds:
        return min(timing.newcomer_backoff_seconds, timing.longest_backoff_seconds)
    return timing.longest_backoff_seconds


class _End(NamedTuple):
    """Why a connection ended."""

    reason: str
    is_silent: bool = False
    is_down: bool = False


class _Silence:
    """Ends a read that takes longer than `longest_seconds()`, by `timeout`.

    A fleet's workers send thousands of messages a second: a deadline is looked at when it was due, and put
    off where a read has begun since, instead of set anew for each read.
    """

    def __init__(self, timeout: asyncio.Timeout, longest_seconds: Callable[[], float]) -> None:
        self._timeout, self._longest_seconds = timeout, longest_seconds
        self._loop = asyncio.get_running_loop()
        self._began_at = math.inf
        self._check: asyncio.TimerHandle | None = None

    def begins(self) -> None:
        """A read begins."""
        self._began_at = self._loop.time()
        due_at = self._began_at + self._longest_seconds()
        if self._check is None or due_at < self._check.when():
            self.close()
            self._check = self._loop.call_at(due_at, self._look)

    def ends(self) -> None:
        """The read is over."""
        self._began_at = math.inf

    def close(self) -> None:
        """Look no more."""
        if self._check is not None:
            self._check.cancel()

    def _look(self) -> None:
        self._check = None
        now, due_at = self._loop.time(), self._began_at + self._longest_seconds()
        if due_at <= now:
            self._timeout.reschedule(now)
        elif due_at < math.inf:
            self._check = self._loop.call_at(due_at, self._look)


@contextlib.asynccontextmanager
async def _silence(longest_seconds: Callable[[], float]) -> AsyncIterator[_Silence]:
    """Raises TimeoutError out of the block when a read was silent for too long."""
    async with asyncio.timeout(None) as timeout:
        silence = _Silence(timeout, longest_seconds)
        try:
            yield silence
        finally:
            silence.close()


async def _read_once(
    stream: WorkerStream, source: EventSource, clock: Callable[[], float], versions: AbstractSet[int]
) -> _End:
    """One connection, from opening to its end."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    epoch, after = stream.opening(nonce)
    reader = MessageReader(versions)
    try:
        async with (
            contextlib.aclosing(source.open(stream.endpoint, epoch, after, nonce, versions)) as chunks,
            _silence(stream.silence_seconds) as silence,
        ):
            while True:
                silence.begins()
                data = await anext(chunks, None)
                silence.ends()
                if data is None:
                    return _End("the worker closed the stream")
                for message in reader.feed(data):
                    stream.received(message, clock())
                    await asyncio.sleep(0)  # a snapshot's chunks must not hold up answers one after the other
    except TimeoutError:
        stream.silent()
        return _End("the worker is silent", is_silent=True)
    except StreamUnavailableError as error:
        return _End(str(error), error.is_silent, error.is_down)
    except (WarmfleetError, OSError) as error:
        return _End(str(error))
    except Exception:  # noqa: BLE001
        # The task must outlive any fault of one connection: without it the worker would be lost for good.
        _log.exception("event stream failed unexpectedly", uid=stream.endpoint.uid)
        return _End("internal error")
