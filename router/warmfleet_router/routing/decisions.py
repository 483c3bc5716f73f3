"""Why each request went to its worker, kept in a bounded ring.

A decision is stored before its dispatch, with its prediction; what the worker reports is written beside the
prediction and never over it. A retry is another attempt of the same decision.
"""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal

import msgspec

from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.policies import Candidate

DEFAULT_CAPACITY: Final = 4096
MAX_RECORDED_CANDIDATES: Final = 16
"""Candidates kept per attempt, best first: a fleet of a thousand must not fill the ring."""

Outcome = Literal["in flight", "completed", "client left", "refused", "failed", "broken"]
Difference = Literal["none", "evicted", "not_yet_computed", "preempted", "stored_since", "unknown"]


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One worker that was considered, with every term of its cost."""

    uid: str
    endpoint: str
    score: float
    """In the policy's own unit: milliseconds, sequences, or places."""
    precise: bool
    cached_tokens: int
    pending_tokens: int
    uncached_tokens: int
    wait_ms: float
    prefill_ms: float
    base_ms: float
    externality_ms: float
    total_ms: float
    rates: str
    """Where the rates came from: measured, peers or prior."""
    running_sequences: int
    waiting_sequences: int
    queued_uncached_tokens: int


class Attempt(msgspec.Struct, kw_only=True, array_like=True):
    """One dispatch. Fields after `dispatch` are filled in as the worker answers."""

    uid: str
    endpoint: str
    reason: str
    runner_up: str | None
    precise: bool
    candidates: list[CandidateRecord]
    candidate_count: int
    not_considered: dict[str, str] = {}
    """Why other ready workers were not: uid to reason, at most `MAX_RECORDED_CANDIDATES`."""
    predicted_prompt_tokens: int
    predicted_cached_tokens: int
    """Of the first prompt, which is the one whose numbers the worker's headers carry."""
    pending_tokens: int
    last_block: str | None
    """Hex of the hash of the first prompt's last full block."""
    dispatch: int = 0
    dispatched_after_ms: float | None = None
    actual_prompt_tokens: int | None = None
    actual_cached_tokens: int | None = None
    last_block_matches: bool | None = None
    """False is a parity bug; None where one side has no full block, or no tokenizer."""
    difference: Difference = "unknown"
    position: str | None = None
    headers_after_ms: float | None = None
    first_byte_after_ms: float | None = None
    status: int | None = None
    error: str | None = None


class Decision(msgspec.Struct, kw_only=True, array_like=True):
    """Everything that was decided and measured about one request."""

    id: str
    request_id: str
    path: str
    model: str
    policy: str
    mode: Literal["precise", "load-only"]
    prompt_tokens: int
    """Over all prompts; an estimate where no tokenizer is known."""
    prompts: int
    decided_at: float
    """Unix time in seconds."""
    decision_ms: float
    """From the complete body to the first choice: decoding, encoding, hashing, matching, cost."""
    attempts: list[Attempt]
    tenant: str = "anonymous"
    priority: int = 0
    """As admitted; lower is more urgent."""
    held_ms: float | None = None
    """How long it waited in the router for capacity; None if it did not, or still does."""
    held_behind: int | None = None
    """About how many would be served before it when it began to wait; None if it did not wait."""
    held_because: str = ""
    outcome: Outcome = "in flight"
    total_ms: float | None = None

    @property
    def retries(self) -> int:
        return max(len(self.attempts) - 1, 0)

    def as_json(self) -> dict[str, object]:
        """The decision with its last attempt's fields on top, and those that failed under `retried`."""
        fields = msgspec.structs.asdict(self)
        del fields["attempts"]
        attempts = [_fields(attempt) for attempt in self.attempts]
        last = attempts[-1] if attempts else {}
        return {**fields, **last, "retries": self.retries, "retried": attempts[:-1]}


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Decision)


class DecisionRing:
    """The newest decisions, found by their own id or by the request's. Not shared between threads.

    Use `add` before the dispatch and `ended` after the answer. A decision that ended is kept encoded: some
    400 bytes and about 120 per candidate, a fifth of what the objects take. A search reads the whole ring.
    """

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._slots: list[Decision | bytes | None] = [None] * capacity
        self._added = 0
        self._open: dict[str, int] = {}
        """Slots of the decisions that are still written to, by their id."""

    def add(self, decision: Decision) -> None:
        """Keep `decision`; the oldest goes when the ring is full."""
        slot = self._added % len(self._slots)
        oldest = self._slots[slot]
        if isinstance(oldest, Decision):
            del self._open[oldest.id]
        self._slots[slot] = decision
        self._open[decision.id] = slot
        self._added += 1

    def ended(self, decision: Decision) -> None:
        """`decision` will not change any more."""
        slot = self._open.pop(decision.id, None)
        if slot is not None:
            self._slots[slot] = _encoder.encode(decision)

    def find(self, name: str) -> Decision | None:
        """By decision id, or the newest with this request id."""
        text = name.encode()
        of_request = None
        for kept in self._newest_first():
            if isinstance(kept, bytes) and text not in kept:
                continue
            decision = _decoded(kept)
            if decision.id == name:
                return decision
            if decision.request_id == name and of_request is None:
                of_request = decision
        return of_request

    def newest(self, limit: int) -> list[Decision]:
        """Up to `limit` decisions, newest first."""
        return [_decoded(kept) for kept in islice(self._newest_first(), limit)]

    def __len__(self) -> int:
        return min(self._added, len(self._slots))

    def _newest_first(self) -> Iterator[Decision | bytes]:
        for number in range(self._added - 1, self._added - len(self) - 1, -1):
            kept = self._slots[number % len(self._slots)]
            assert kept is not None, "a slot below the count has been filled"
            yield kept


def attempt_of(choice: PickedWorker) -> Attempt:
    """The record of a choice, before its dispatch."""
    ranking, first = choice.ranking, choice.prediction.first
    return Attempt(
        uid=choice.candidate.uid,
        endpoint=choice.candidate.endpoint,
        reason=ranking.reason,
        runner_up=ranking.candidates[1].endpoint if len(ranking.candidates) > 1 else None,
        precise=choice.candidate.precise,
        candidates=[
            _record(candidate, score)
            for candidate, score in zip(
                ranking.candidates[:MAX_RECORDED_CANDIDATES],
                ranking.scores[:MAX_RECORDED_CANDIDATES],
                strict=True,
            )
        ],
        candidate_count=len(ranking.candidates),
        not_considered=dict(islice(choice.left_out.items(), MAX_RECORDED_CANDIDATES)),
        predicted_prompt_tokens=first.prompt_tokens,
        predicted_cached_tokens=first.cached_tokens,
        pending_tokens=first.pending_tokens,
        last_block=first.last_block.hex() if first.last_block else None,
    )


def difference_of(attempt: Attempt, actual_cached_tokens: int | None, *, is_coming: bool) -> Difference:
    """Why the worker found another number of cached tokens than predicted, in the same prompt.

    A shortfall in what was resident means evicted. A shortfall in what was pending means that its leader
    had not computed it yet (`is_coming`), or, if no request computes it any more, that the leader was
    preempted or ended.
    """
    predicted = attempt.predicted_cached_tokens
    if actual_cached_tokens is None or not attempt.precise:
        return "unknown"
    if actual_cached_tokens >= predicted:
        return "none" if actual_cached_tokens == predicted else "stored_since"
    if actual_cached_tokens < predicted - attempt.pending_tokens:
        return "evicted"
    return "not_yet_computed" if is_coming else "preempted"


def _fields(attempt: Attempt) -> dict[str, object]:
    """By name: without names is how they are kept."""
    candidates = [msgspec.structs.asdict(candidate) for candidate in attempt.candidates]
    return {**msgspec.structs.asdict(attempt), "candidates": candidates}


def _decoded(kept: Decision | bytes) -> Decision:
    return kept if isinstance(kept, Decision) else _decoder.decode(kept)


def now_seconds() -> float:
    """Unix time, as decisions carry it."""
    return time.time()


def _record(candidate: Candidate, score: float) -> CandidateRecord:
    cost, load = candidate.cost, candidate.load
    return CandidateRecord(
        uid=candidate.uid,
        endpoint=candidate.endpoint,
        score=round(score, 3),
        precise=candidate.precise,
        cached_tokens=candidate.cached_tokens,
        pending_tokens=candidate.pending_tokens,
        uncached_tokens=candidate.uncached_tokens,
        wait_ms=round(cost.wait_ms, 3),
        prefill_ms=round(cost.prefill_ms, 3),
        base_ms=round(cost.base_ms, 3),
        externality_ms=round(cost.externality_ms, 3),
        total_ms=round(cost.total_ms, 3),
        rates=candidate.rates.source.value,
        running_sequences=load.running_sequences,
        waiting_sequences=load.waiting_sequences,
        queued_uncached_tokens=load.queued_uncached_tokens,
    )
