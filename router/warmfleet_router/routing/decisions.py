"""What is recorded of each request: its choices and predictions, what workers answered, and how it ended.

All values are frozen: a `DecisionRecorder` makes a new `Decision` whenever something is added. What a worker
reports stands beside the prediction and never over it. A retry is another attempt of the same decision.
"""

import time
from itertools import islice
from typing import Final, Literal

import msgspec

from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_contracts.cache.recorded_prefix import RecordedPrefix
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.policies import Candidate

MAX_RECORDED_CANDIDATES: Final = 16
"""Candidates kept per attempt, best first: a fleet of a thousand must not fill the ring."""

Outcome = Literal["in flight", "completed", "client left", "refused", "failed", "broken"]
Mode = Literal["precise", "load-only"]
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
    later_ms: float
    total_ms: float
    rates: str
    """Where the rates came from: measured, peers or prior."""
    running_sequences: int
    waiting_sequences: int
    queued_uncached_tokens: int


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What is known of a request before a worker is chosen for it."""

    id: str
    """Of the decision."""
    request_id: str
    path: str
    model: str
    policy: str
    prompt_tokens: int
    """Over all prompts; an estimate where no tokenizer is known."""
    prompts: int
    decided_at: float
    """Unix time in seconds."""
    tenant: str = "anonymous"
    priority: int = 0
    """As admitted; lower is more urgent."""


class QueuePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a request began to wait for capacity."""

    behind: int
    """About how many would be served before it."""
    because: str


class Choice(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The worker that was chosen for one attempt, and what was predicted."""

    uid: str
    endpoint: str
    reason: str
    runner_up: str | None
    precise: bool
    candidates: tuple[CandidateRecord, ...]
    candidate_count: int
    not_considered: dict[str, str] = {}
    """Why other ready workers were not: uid to reason, at most `MAX_RECORDED_CANDIDATES`."""
    predicted_prompt_tokens: int
    predicted_cached_tokens: int
    """Of the first prompt, which is the one whose numbers the worker's headers carry."""
    pending_tokens: int
    last_block: str | None
    """Hex of the hash of the first prompt's last full block."""

    def as_json(self) -> dict[str, object]:
        """By name: without names is how it is kept."""
        candidates = [msgspec.structs.asdict(candidate) for candidate in self.candidates]
        return {**msgspec.structs.asdict(self), "candidates": candidates}


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a worker's headers report."""

    status: int
    headers_after_ms: float
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    last_block_matches: bool | None = None
    """False is a parity bug; None where one side has no full block, or no tokenizer."""
    difference: Difference = "unknown"
    position: str | None = None
    misses: MissTokens | None = None
    """What was computed, by cause, over the prompts that are known: of a stream the first."""


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One dispatch; None is what has not happened. Times are since the request's body was complete."""

    choice: Choice
    dispatch: int
    dispatched_after_ms: float
    answer: WorkerAnswer | None = None
    first_byte_after_ms: float | None = None
    error: str | None = None

    @property
    def status(self) -> int | None:
        """HTTP status of the answer."""
        return self.answer.status if self.answer is not None else None

    def as_json(self) -> dict[str, object]:
        """One flat object: the choice, the dispatch and the answer."""
        answer = self.answer
        return {
            **self.choice.as_json(),
            "dispatch": self.dispatch,
            "dispatched_after_ms": self.dispatched_after_ms,
            "actual_prompt_tokens": answer.prompt_tokens if answer else None,
            "actual_cached_tokens": answer.cached_tokens if answer else None,
            "last_block_matches": answer.last_block_matches if answer else None,
            "difference": answer.difference if answer else "unknown",
            "missed_tokens": msgspec.to_builtins(answer.misses) if answer and answer.misses else None,
            "position": answer.position if answer else None,
            "headers_after_ms": answer.headers_after_ms if answer else None,
            "first_byte_after_ms": self.first_byte_after_ms,
            "status": self.status,
            "error": self.error,
        }


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """Everything that was decided and measured about one request so far."""

    request: RequestRecord
    decision_ms: float = 0.0
    """From the complete body to the first choice: decoding, encoding, hashing, matching, cost."""
    attempts: tuple[Attempt, ...] = ()
    queue_place: QueuePlace | None = None
    """None if it did not have to wait for its first worker."""
    held_ms: float | None = None
    """How long it waited in the router for capacity; None if it did not, or still does."""
    outcome: Outcome = "in flight"
    total_ms: float | None = None
    """None while it is open."""
    output_tokens: int | None = None
    """Generated over all sequences, as far as the client got them; None until a worker's attempt ended."""
    prefix: RecordedPrefix | None = None
    """None while it is open, and where no tokenizer is known."""

    @property
    def mode(self) -> Mode:
        """Whether the first choice was made with the index."""
        return "precise" if self.attempts and self.attempts[0].choice.precise else "load-only"

    @property
    def retries(self) -> int:
        return max(len(self.attempts) - 1, 0)

    def as_json(self) -> dict[str, object]:
        """The decision with its last attempt's fields on top, and those that failed under `retried`."""
        request, place = self.request, self.queue_place
        attempts = [attempt.as_json() for attempt in self.attempts]
        last = attempts[-1] if attempts else {}
        return {
            "id": request.id,
            "request_id": request.request_id,
            "path": request.path,
            "model": request.model,
            "policy": request.policy,
            "mode": self.mode,
            "prompt_tokens": request.prompt_tokens,
            "prompts": request.prompts,
            "decided_at": request.decided_at,
            "decision_ms": self.decision_ms,
            "tenant": request.tenant,
            "priority": request.priority,
            "held_ms": self.held_ms,
            "held_behind": place.behind if place else None,
            "held_because": place.because if place else "",
            "outcome": self.outcome,
            "total_ms": self.total_ms,
            "output_tokens": self.output_tokens,
            "block_size_tokens": self.prefix.block_size_tokens if self.prefix else None,
            "prefix": self.prefix.marks.hex() if self.prefix else None,
            **last,
            "retries": self.retries,
            "retried": attempts[:-1],
        }


def choice_of(picked: PickedWorker) -> Choice:
    """The record of a worker that was picked."""
    ranking, first = picked.ranking, picked.prediction.first
    return Choice(
        uid=picked.candidate.uid,
        endpoint=picked.candidate.endpoint,
        reason=ranking.reason,
        runner_up=ranking.candidates[1].endpoint if len(ranking.candidates) > 1 else None,
        precise=picked.candidate.precise,
        candidates=tuple(
            _record(candidate, score)
            for candidate, score in zip(
                ranking.candidates[:MAX_RECORDED_CANDIDATES],
                ranking.scores[:MAX_RECORDED_CANDIDATES],
                strict=True,
            )
        ),
        candidate_count=len(ranking.candidates) + ranking.unlisted,
        not_considered=dict(islice(picked.left_out.items(), MAX_RECORDED_CANDIDATES)),
        predicted_prompt_tokens=first.prompt_tokens,
        predicted_cached_tokens=first.cached_tokens,
        pending_tokens=first.pending_tokens,
        last_block=first.last_block.hex() if first.last_block else None,
    )


def difference_of(choice: Choice, actual_cached_tokens: int | None, *, is_coming: bool) -> Difference:
    """Why the worker found another number of cached tokens than predicted, in the same prompt.

    A shortfall in what was resident means evicted. A shortfall in what was pending means that its leader
    had not computed it yet (`is_coming`), or, if no request computes it any more, that the leader was
    preempted or ended.
    """
    predicted = choice.predicted_cached_tokens
    if actual_cached_tokens is None or not choice.precise:
        return "unknown"
    if actual_cached_tokens >= predicted:
        return "none" if actual_cached_tokens == predicted else "stored_since"
    if actual_cached_tokens < predicted - choice.pending_tokens:
        return "evicted"
    return "not_yet_computed" if is_coming else "preempted"


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
        later_ms=round(cost.later_ms, 3),
        total_ms=round(cost.total_ms, 3),
        rates=candidate.rates.source.value,
        running_sequences=load.running_sequences,
        waiting_sequences=load.waiting_sequences,
        queued_uncached_tokens=load.queued_uncached_tokens,
    )
