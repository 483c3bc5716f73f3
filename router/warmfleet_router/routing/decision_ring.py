"""The newest decisions, in a bounded ring."""

import zlib
from array import array
from typing import Final

import msgspec

from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decisions import Decision

MAX_DECISIONS: Final = 4096
"""Kept by default, and listed at once at most."""

_RAW_DEFLATE: Final = -12
"""Without zlib's header and checksum, and with a window of 4 KiB: a decision and the one before it."""
_DEFLATE_MEMORY: Final = 4
"""8 KiB for the compressor in place of 128."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Decision)


class DecisionRing:
    """The newest decisions, found by their own id or by the request's. Not shared between threads.

    Use `add` before the dispatch and `ended` after the answer. The recorder is kept until then, and from then
    on the decision's encoding, compressed against the first one that ended, because most of it is alike in
    all: some 200 bytes, a tenth of what the objects take.
    """

    def __init__(self, capacity: int = MAX_DECISIONS) -> None:
        self._slots: list[DecisionRecorder | bytes | None] = [None] * capacity
        self._id_hashes, self._request_id_hashes = (array("q", [0]) * capacity for _ in range(2))
        self._pattern = b""
        """Encoding of the first decision that ended."""
        self._added = 0
        self._open: dict[str, int] = {}
        """Slots of the decisions that have not ended, by their id."""

    def add(self, recorder: DecisionRecorder) -> None:
        """Keep what `recorder` records; the oldest goes when the ring is full."""
        slot = self._added % len(self._slots)
        oldest = self._slots[slot]
        if isinstance(oldest, DecisionRecorder):
            del self._open[oldest.request.id]
        self._slots[slot] = recorder
        self._id_hashes[slot] = hash(recorder.request.id)
        self._request_id_hashes[slot] = hash(recorder.request.request_id)
        self._open[recorder.request.id] = slot
        self._added += 1

    def ended(self, recorder: DecisionRecorder) -> None:
        """Nothing more is recorded; from now on the decision is kept encoded."""
        slot = self._open.get(recorder.request.id)
        if slot is not None:
            encoded = _encoder.encode(recorder.decision)
            self._pattern = self._pattern or encoded
            compressor = zlib.compressobj(
                level=1, wbits=_RAW_DEFLATE, memLevel=_DEFLATE_MEMORY, zdict=self._pattern
            )
            self._slots[slot] = compressor.compress(encoded) + compressor.flush()
            del self._open[recorder.request.id]

    def find(self, name: str) -> Decision | None:
        """By decision id, or the newest with this request id."""
        name_hash = hash(name)
        of_request = None
        for slot in self._newest_slots(len(self)):
            if name_hash not in (self._id_hashes[slot], self._request_id_hashes[slot]):
                continue
            decision = self._decision(slot)
            if decision.request.id == name:
                return decision
            if decision.request.request_id == name and of_request is None:
                of_request = decision
        return of_request

    def newest(self, limit: int) -> list[Decision]:
        """Up to `limit` decisions, newest first."""
        return [self._decision(slot) for slot in self._newest_slots(min(limit, len(self)))]

    def __len__(self) -> int:
        return min(self._added, len(self._slots))

    def _newest_slots(self, count: int) -> list[int]:
        return [number % len(self._slots) for number in range(self._added - 1, self._added - count - 1, -1)]

    def _decision(self, slot: int) -> Decision:
        kept = self._slots[slot]
        assert kept is not None, "a slot below the count has been filled"
        if isinstance(kept, DecisionRecorder):
            return kept.decision
        return _decoder.decode(zlib.decompressobj(wbits=_RAW_DEFLATE, zdict=self._pattern).decompress(kept))
