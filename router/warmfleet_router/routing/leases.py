"""Leases: what one dispatch occupies of a worker, given back however the dispatch ends.

A lease charges prefill tokens until the first byte and seats with their blocks until the last one
(`open_dispatches`), and makes the prompt's blocks pending at the worker (`pending_blocks`). Nothing of a
plain answer is seen before its end: its worker's load reports state when it got its first token.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self, cast

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import MAX_COUNT, Frame, PlainAnswer
from warmfleet_router.routing.known_loads import KnownLoads
from warmfleet_router.routing.open_dispatches import OpenDispatches
from warmfleet_router.routing.pending_blocks import PendingBlocks
from warmfleet_router.routing.seat_times import SeatTimes

ABANDONED_SECONDS: Final = 1.0
"""A worker may compute a prompt for so long after its dispatch was given up: until it has noticed."""


class Charge(msgspec.Struct, frozen=True):
    """What one dispatch occupies of its worker."""

    uid: str
    uncached_tokens: int
    blocks: int
    sequences: int = 1
    new_hashes: Sequence[BlockHash] = ()
    """Blocks that the dispatch will compute there, in prompt order."""
    first_hashes: Sequence[BlockHash] = ()
    """Those of them with which a prompt begins."""


class Leases:
    """What the live dispatches of one router occupy. Not shared between threads.

    async with leases.lease(picked.charge) as lease:
        ...  # send the request with `lease.dispatch`; `lease.first_byte()` ends its prefill
    """

    def __init__(
        self,
        life_id: str,
        now: Callable[[], float] = time.monotonic,
        *,
        on_capacity: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_capacity` is called when a dispatch's prefill is done and when the dispatch ends."""
        self.now = now
        self.dispatches = OpenDispatches(life_id)
        self.pending = PendingBlocks(now)
        self.seat_times = SeatTimes()
        self.loads = KnownLoads(self.dispatches, self.seat_times)
        self.on_capacity = on_capacity
        self._open: dict[int, Lease] = {}
        """By dispatch."""
        self._abandoned_at: dict[str, float] = {}
        """When the latest dispatch to a worker ended without a byte, by uid."""

    def lease(self, charge: Charge, *, most_generated_tokens: int = MAX_COUNT) -> "Lease":
        """A lease that is charged from `async with` to the end of that block.

        What its worker reports of it beyond `most_generated_tokens`, over all sequences, is wrong.
        """
        return Lease(self, charge, most_generated_tokens)

    def frame_arrived(self, uid: str, frame: Frame) -> None:
        """A worker reported its load, or what it stored."""
        if frame.load is not None:
            self.dispatches.reported(uid, frame.load)
            self.loads.reported(uid, frame.load)
            for answer in frame.load.plain_answers.get(self.dispatches.life_id, ()):
                lease = self._open.get(answer.dispatch)
                if lease is not None and lease.charge.uid == uid:
                    lease.progressed(answer)
        self.pending.stored(uid, cast("list[BlockHash]", frame.stored))

    def opened(self, lease: "Lease") -> None:
        """A lease is open: what its worker reports of it reaches it."""
        self._open[lease.dispatch] = lease

    def closed(self, lease: "Lease") -> bool:
        """A lease was given back; returns whether it was charged until now: its worker is still there."""
        self._open.pop(lease.dispatch, None)
        return self.dispatches.close(lease.charge.uid, lease.dispatch)

    def abandoned(self, uid: str) -> None:
        """A dispatch ended without a byte; its worker is still there."""
        self._abandoned_at[uid] = self.now()

    def awaits_first_byte(self, uid: str) -> bool:
        """Whether a worker may compute a prompt of this router that has no byte of an answer."""
        abandoned_at = self._abandoned_at.get(uid)
        if abandoned_at is not None and self.now() - abandoned_at < ABANDONED_SECONDS:
            return True
        return self.dispatches.awaits_first_byte(uid)

    def forget(self, uid: str) -> None:
        """The worker is gone. Live leases on it end by themselves."""
        self.dispatches.forget(uid)
        self.pending.forget(uid)
        self.seat_times.forget(uid)
        self.loads.forget(uid)
        self._abandoned_at.pop(uid, None)


class Lease(AbstractAsyncContextManager["Lease"]):
    """What one dispatch occupies of one worker. Released on success, error and cancellation alike."""

    def __init__(self, leases: Leases, charge: Charge, most_generated_tokens: int) -> None:
        self._leases = leases
        self.charge = charge
        self._most_generated_tokens = most_generated_tokens
        self.dispatch = 0
        """This router's counter, from 1; sent in a header."""
        self.first_token_after_seconds: float | None = None
        """Of a plain answer, since its dispatch; None until its worker reports it."""
        self.generated_tokens = 0
        """Of a plain answer, as its worker reported last."""
        self._ticket = 0
        self._opened_at = 0.0
        self._seated_at: float | None = None
        self._first_byte = False
        self._open = False
        self._closed = False

    @property
    def is_prefilling(self) -> bool:
        """Open, and no byte of the answer has arrived."""
        return self._open and not self._first_byte and not self._closed

    def seated(self) -> None:
        """The worker admitted the request: the response headers of its stream are here."""
        self._seated_at = self._leases.now()

    def progressed(self, answer: PlainAnswer) -> None:
        """The worker reports how far a plain answer is; an older report changes nothing."""
        open_seconds = self._leases.now() - self._opened_at
        # The worker's clock runs no longer than the lease: what exceeds it is no time.
        admitted_after = min(open_seconds, max(0.0, answer.admitted_after_seconds))
        self.first_token_after_seconds = min(open_seconds, max(0.0, answer.first_token_after_seconds))
        generated_tokens = min(answer.generated_tokens, self._most_generated_tokens)
        self.generated_tokens = max(self.generated_tokens, generated_tokens)
        self._seated_at = self._opened_at + admitted_after
        self.first_byte()

    def first_byte(self) -> None:
        """The prefill is done: the first byte of a stream is here, or a whole answer. Idempotent."""
        if not self._first_byte:
            self._first_byte = True
            self._leases.dispatches.first_byte(self.charge.uid, self.dispatch)
            self._leases.loads.changed(self.charge.uid)
            self._leases.pending.settle(self._ticket)
            self._leases.on_capacity()

    def open(self) -> Self:
        """Charge the worker from now on. Idempotent; `async with` does it too."""
        if not self._open:
            self._open = True
            self._opened_at = self._leases.now()
            charge = self.charge
            self.dispatch = self._leases.dispatches.open(
                charge.uid,
                uncached_tokens=charge.uncached_tokens,
                seats=charge.sequences,
                blocks=charge.blocks,
            )
            self._leases.loads.changed(charge.uid)
            self._ticket = self._leases.pending.insert(charge.uid, charge.new_hashes, charge.first_hashes)
            self._leases.opened(self)
        return self

    def close(self, *, ended_well: bool = False) -> None:
        """Give everything back. Idempotent; the end of `async with` does it too."""
        if not self._open or self._closed:
            return
        self._closed = True
        was_charged = self._leases.closed(self)
        if not self._first_byte:
            self._leases.pending.drop(self._ticket)
            if was_charged:
                self._leases.abandoned(self.charge.uid)
        elif ended_well and was_charged and self._seated_at is not None:
            self._leases.seat_times.add(self.charge.uid, self._leases.now() - self._seated_at)
        self._leases.loads.changed(self.charge.uid)
        self._leases.on_capacity()

    async def __aenter__(self) -> Self:
        return self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(ended_well=error is None)
