"""Opens one worker's event stream again and again, and passes its messages on to the `WorkerStream`."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

import structlog

from warmfleet_contracts.cache.contract_versions import ACCEPTED_VERSIONS
from warmfleet_contracts.cache.kv_events import MessageReader
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.event_stream import StreamTiming, WorkerStream
from warmfleet_router.workers.read_deadline import deadline_of_reads

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
            deadline_of_reads(stream.silence_seconds) as deadline,
        ):
            while True:
                deadline.read_begins()
                data = await anext(chunks, None)
                deadline.read_ends()
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
