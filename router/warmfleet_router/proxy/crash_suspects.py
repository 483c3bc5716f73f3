"""Requests under which engines ended: after two engines, a request is refused.

A request that ends every engine which computes it would otherwise be retried here and by clients, each time
at the price of an engine. So a dispatch that failed without a token, after its request was sent, is
remembered by the request's content. If the epoch of its worker ends soon after, or did so just before, that
epoch counts against the content: a refused connection, a worker that drains, and one that lives on do not.

An engine's end counts against all that it was about to answer, also against a prompt that others joined. A
request against which one epoch counts is a *suspect*, which admission has computed alone
(`admission/isolation`). It is refused only if an epoch ended while it was alone: what other clients sent
beside it never refuses it. An answer clears its request.

Contents are those of one tenant: what one sends never refuses the same text of another. Each router counts
for itself.
"""

import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import structlog

from warmfleet_router.error_responses import fatal_request_error

FATAL_EPOCHS: Final = 2
"""So many epochs have to end under a request before it is refused, one of them while it was alone."""
CONFIRM_SECONDS: Final = 10.0
"""A dispatch failed because of an engine's end if the two are no further apart."""
SETTLE_SECONDS: Final = 1.0
"""How long the retry of a suspect waits for the end of the epoch under which it failed last: a lost worker is
noticed when its event stream is opened again, which takes some 50 ms."""
KEPT_SECONDS: Final = 600.0
"""A content is forgotten so long after the last failure under it."""
MAX_CONTENTS: Final = 4096
"""Contents that are remembered, some 500 bytes each; beyond it the oldest goes."""

Epoch = tuple[str, str]
"""Uid of a worker and epoch of its engine."""

_log = structlog.get_logger("warmfleet.router.proxy")


class RequestContent:
    """What makes two requests the same: tenant, path and body."""

    def __init__(self, tenant: str, path: str, body: bytes) -> None:
        self._tenant = tenant
        self._path = path
        self._body = body

    @property
    def size(self) -> tuple[str, int]:
        """Equal for equal contents, and known without reading the body."""
        return self._tenant, len(self._body)

    @cached_property
    def key(self) -> bytes:
        """Equal for equal contents only."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self._tenant.encode(), self._path.encode()):
            digest.update(len(part).to_bytes(8, "little") + part)
        digest.update(self._body)
        return digest.digest()


class _Failure(NamedTuple):
    """A dispatch that brought no token."""

    at: float
    is_lost: bool
    """The connection broke, so that the worker's process has probably ended."""
    was_alone: bool
    """No other prompt was computed beside it."""


@dataclass(slots=True, eq=False)
class _Record:
    """What happened under one content."""

    size: tuple[str, int]
    changed_at: float = 0.0
    failed: dict[Epoch, _Failure] = field(default_factory=dict)
    """Failed dispatches under epochs that are not known to have ended."""
    ended: set[Epoch] = field(default_factory=set)
    ended_alone: bool = False
    """Whether one of them ended while the request was computed alone."""

    @property
    def is_fatal(self) -> bool:
        """Whether the request is refused."""
        return self.ended_alone and len(self.ended) >= FATAL_EPOCHS

    def failing(self, now: float) -> dict[Epoch, _Failure]:
        """Failed dispatches that the end of their epoch would still explain."""
        return {
            epoch: failure for epoch, failure in self.failed.items() if now - failure.at <= CONFIRM_SECONDS
        }


class CrashSuspects:
    """The contents under which epochs ended, bounded in number and time. Not shared between threads.

    suspects.check(content)  # before each dispatch
    suspects.failed(content, uid, epoch)  # the dispatch brought no token
    await suspects.settled(content)  # before a retry
    suspects.answered(content)
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._records: dict[bytes, _Record] = {}
        """In the order of their latest changes."""
        self._sizes: Counter[tuple[str, int]] = Counter()
        """Of all records: a request of another size is not hashed."""
        self._ended: dict[Epoch, float] = {}
        """When epochs ended, in that order; for failures that are noticed later."""
        self._next_end = asyncio.Event()
        """Set, and replaced, when an epoch ends."""

    # Events.

    def failed(
        self,
        content: RequestContent,
        uid: str,
        epoch: str,
        *,
        is_lost: bool = True,
        was_alone: bool = True,
    ) -> None:
        """A dispatch brought no token, although the worker may have begun to compute it.

        `is_lost`: because its connection broke; the worker has not answered with an error. `was_alone`: the
        worker computed no other prompt beside it.
        """
        now = self._now()
        self._expire(now)
        record = self._drop(content.key) if content.key in self._records else _Record(content.size)
        record.changed_at = now
        record.failed = record.failing(now)
        if (uid, epoch) in self._ended:
            self._count(record, (uid, epoch), was_alone=was_alone)
        else:
            record.failed[uid, epoch] = _Failure(now, is_lost, was_alone)
        self._records[content.key] = record
        self._sizes[record.size] += 1
        if len(self._records) > MAX_CONTENTS:
            self._drop(next(iter(self._records)))

    def engine_ended(self, uid: str, epoch: str) -> None:
        """A worker's engine is gone, and was not about to go. Idempotent."""
        now = self._now()
        self._expire(now)
        ended = (uid, epoch)
        self._ended.pop(ended, None)
        self._ended[ended] = now
        for record in self._records.values():
            failure = record.failing(now).get(ended)
            if failure is not None:
                self._count(record, ended, was_alone=failure.was_alone)
        self._next_end.set()
        self._next_end = asyncio.Event()

    def answered(self, content: RequestContent) -> None:
        """A worker has answered such a request."""
        if self._find(content) is not None:
            self._drop(content.key)

    async def settled(self, content: RequestContent) -> None:
        """Wait until it is known whether the epoch under which a suspect failed last has ended."""
        if not self._is_unsettled(content):
            return  # without a timer: almost every request
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while self._is_unsettled(content):
                    await self._next_end.wait()

    # Queries.

    def check(self, content: RequestContent) -> None:
        """Refuse a request under which too many epochs ended.

        Raises:
            RequestError: 422.
        """
        record = self._find(content)
        if record is not None and record.is_fatal:
            raise fatal_request_error(len(record.ended), KEPT_SECONDS)

    def is_suspect(self, content: RequestContent) -> bool:
        """Whether an epoch ended under such a request, or probably did just now."""
        record = self._find(content)
        if record is None:
            return False
        failing = record.failing(self._now()).values()
        return bool(record.ended) or any(failure.is_lost for failure in failing)

    def _is_unsettled(self, content: RequestContent) -> bool:
        record = self._find(content)
        return record is not None and bool(record.ended) and bool(record.failing(self._now()))

    def _find(self, content: RequestContent) -> _Record | None:
        if content.size not in self._sizes:
            return None
        record = self._records.get(content.key)
        return record if record is not None and self._now() - record.changed_at <= KEPT_SECONDS else None

    # Inside.

    def _drop(self, key: bytes) -> _Record:
        record = self._records.pop(key)
        self._sizes[record.size] -= 1
        if not self._sizes[record.size]:
            del self._sizes[record.size]
        return record

    def _count(self, record: _Record, ended: Epoch, *, was_alone: bool) -> None:
        was_fatal = record.is_fatal
        record.failed.pop(ended, None)
        record.ended.add(ended)
        record.ended_alone |= was_alone
        if record.is_fatal and not was_fatal:
            _log.warning("engines ended under a request, which is refused from now on", tenant=record.size[0])

    def _expire(self, now: float) -> None:
        while self._records:
            key = next(iter(self._records))
            if now - self._records[key].changed_at <= KEPT_SECONDS:
                break
            self._drop(key)
        while self._ended:
            ended = next(iter(self._ended))
            if now - self._ended[ended] <= CONFIRM_SECONDS:
                break
            del self._ended[ended]
