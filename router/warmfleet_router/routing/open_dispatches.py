"""What this router sent to each worker and the worker's reports do not include yet.

A load report is up to a heartbeat old. Every dispatch carries (router id, counter), and a report states up
to which counter of each router it includes: dispatches above that are added to the report, those at or below
it are in the report already. So nothing is counted twice, and several routers do not all choose the worker
that looked idle to each of them.

A dispatch ends on the worker and here at two times, and a report may come between. It states how many of each
router's dispatches it counts: of those that it counts and that have ended here, it counts too much.

If two dispatches arrive in the other order, the admission of the later one hides the earlier one until the
next report. That error is one request for a few milliseconds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import LoadReport

MAX_OPEN_DISPATCHES: Final = 65_536
"""Open dispatches to one worker; more is a leak of leases, and the oldest charges are dropped."""


class UnreportedLoad(msgspec.Struct, frozen=True, gc=False):
    """Charges on top of a load report."""

    tokens: int = 0
    """Uncached prompt tokens, until the first byte of the answer."""
    seats: int = 0
    """Sequences, until the last byte."""
    blocks: int = 0
    """KV blocks that the prompts pin, until the last byte."""

    def __add__(self, other: "UnreportedLoad") -> "UnreportedLoad":
        return UnreportedLoad(
            self.tokens + other.tokens, self.seats + other.seats, self.blocks + other.blocks
        )


class EndedLoad(msgspec.Struct, frozen=True, gc=False):
    """What a load report still counts of dispatches that have ended since it arrived."""

    seats: int = 0
    blocks: int = 0


NOTHING_ENDED: Final = EndedLoad()


@dataclass(slots=True)
class _Charge:
    tokens: int
    seats: int
    blocks: int
    has_first_byte: bool = False


@dataclass(slots=True)
class _Ended:
    report: LoadReport
    admitted: int
    sums: list[EndedLoad]
    """What those that it had admitted and that have ended since held: none, the first, the first two, and so
    on. As many as were open when it came at most."""

    @property
    def count(self) -> int:
        """Of them."""
        return len(self.sums) - 1

    def newest(self, count: int) -> EndedLoad:
        """What the last `count` of them held."""
        last, before = self.sums[-1], self.sums[-1 - count]
        return EndedLoad(last.seats - before.seats, last.blocks - before.blocks)


class OpenDispatches:
    """The open dispatches of this router, per worker, with what each is charged.

    `life_id` must differ between two processes of a router: counters start at 1 in each, and a worker
    remembers the highest it admitted per id.
    """

    def __init__(self, life_id: str) -> None:
        self.life_id = life_id
        self._counter = 0
        self._charges: dict[str, dict[int, _Charge]] = {}
        self._ended: dict[str, _Ended] = {}

    def open(self, uid: str, *, uncached_tokens: int, seats: int = 1, blocks: int = 0) -> int:
        """Charge a dispatch to `uid`; returns its counter, sent along. Counters rise over all workers."""
        self._counter += 1
        counter = self._counter
        charges = self._charges.setdefault(uid, {})
        if len(charges) >= MAX_OPEN_DISPATCHES:
            del charges[next(iter(charges))]
        charges[counter] = _Charge(tokens=uncached_tokens, seats=seats, blocks=blocks)
        return counter

    def first_byte(self, uid: str, counter: int) -> None:
        """The prefill is done: its tokens are no longer charged. Unknown dispatches are ignored."""
        charge = self._charges.get(uid, {}).get(counter)
        if charge is not None:
            charge.tokens = 0
            charge.has_first_byte = True

    def close(self, uid: str, counter: int) -> bool:
        """The answer ended, failed or was abandoned: nothing is charged any more. Idempotent.

        Returns whether it was charged until now: it was not closed before, and its worker is still there.
        """
        charge = self._charges.get(uid, {}).pop(counter, None)
        ended = self._ended.get(uid)
        # The last report counts it, until the next one.
        if charge is not None and ended is not None and counter <= ended.admitted:
            before = ended.sums[-1]
            ended.sums.append(EndedLoad(before.seats + charge.seats, before.blocks + charge.blocks))
        return charge is not None

    def reported(self, uid: str, report: LoadReport) -> None:
        """A load report arrived: it includes what ended before, and still counts what ends from now on."""
        # Not above what was sent: those that end and that this report cannot have had are not kept.
        admitted = min(report.admitted_dispatches.get(self.life_id, 0), self._counter)
        self._ended[uid] = _Ended(report, admitted, sums=[NOTHING_ENDED])

    @property
    def count(self) -> int:
        """Dispatches so far, to all workers."""
        return self._counter

    def ended(self, uid: str, report: LoadReport) -> EndedLoad:
        """What `report` still counts of dispatches that ended since it arrived.

        It states how many it counts, not which: those that ended here first are taken for those that had
        ended on the worker before it. Reports of older workers do not state how many: all are taken for
        counted. Until the next report that may be off by the difference of two dispatches.
        """
        ended = self._ended.get(uid)
        if ended is None or ended.report is not report or not ended.count:
            return NOTHING_ENDED
        if report.open_dispatches is msgspec.UNSET:
            return ended.newest(ended.count)
        counted = report.open_dispatches.get(self.life_id, 0)
        open_here = self.open_count(uid) - sum(1 for _ in self._above(uid, ended.admitted))
        return ended.newest(min(max(counted - open_here, 0), ended.count))

    def unreported(self, uid: str, admitted_dispatches: Mapping[str, int]) -> UnreportedLoad:
        """Charges of `uid` that a report with these `admitted_dispatches` does not include."""
        admitted = admitted_dispatches.get(self.life_id, 0)
        tokens = seats = blocks = 0
        for charge in self._above(uid, admitted):
            tokens += charge.tokens
            seats += charge.seats
            blocks += charge.blocks
        return UnreportedLoad(tokens=tokens, seats=seats, blocks=blocks)

    def _above(self, uid: str, admitted: int) -> Iterator[_Charge]:
        """The charges of the open dispatches to `uid` above that counter."""
        charges = self._charges.get(uid, {})
        # Newest first: the reported ones, usually most, are never looked at.
        for counter in reversed(charges):
            if counter <= admitted:
                return
            yield charges[counter]

    def open_count(self, uid: str) -> int:
        """Dispatches to `uid` that have not ended."""
        return len(self._charges.get(uid, {}))

    def awaits_first_byte(self, uid: str) -> bool:
        """Whether a dispatch to `uid` has not ended and has no byte of its answer yet."""
        return any(not charge.has_first_byte for charge in self._charges.get(uid, {}).values())

    def forget(self, uid: str) -> None:
        """The worker is gone, with all that was dispatched to it."""
        self._charges.pop(uid, None)
        self._ended.pop(uid, None)
