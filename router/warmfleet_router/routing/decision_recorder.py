"""Records one request while it runs, from its queue to its end."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.recorded_prefix import RecordedPrefix
from warmfleet_router.routing.decisions import (
    Attempt,
    Decision,
    Outcome,
    QueuePlace,
    RequestRecord,
    WorkerAnswer,
    choice_of,
)
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.prompt_hashes import HashedPrompt


class DecisionRecorder:
    """Makes a new `Decision` of the last one at each step, so that one which was read does not change.

    A choice is recorded before its dispatch: what it predicts cannot know what came of it.

        recorder = DecisionRecorder(request, since=body_read_at, now=now)
        recorder.queued(3, "3 wait already")
        recorder.dispatched(picked, dispatch=7, held_seconds=0.2)
        recorder.answered(WorkerAnswer(status=200, headers_after_ms=recorder.age_ms()))
        recorder.first_byte()
        recorder.became("completed")
        recorder.generated(120)
        recorder.ended()
        recorder.decision.as_json()
    """

    __slots__ = ("_decision", "_now", "_prompt", "_since", "request")

    def __init__(self, request: RequestRecord, *, since: float, now: Callable[[], float]) -> None:
        """`since` is the time by `now`, in seconds, at which the request's body was complete."""
        self.request: Final = request
        self._since = since
        self._now = now
        self._decision = Decision(request)
        self._prompt: HashedPrompt | None = None

    @property
    def decision(self) -> Decision:
        """What has been recorded so far."""
        return self._decision

    @property
    def attempt(self) -> Attempt:
        """The last one; there is one once `dispatched` was called."""
        return self._decision.attempts[-1]

    def age_ms(self) -> float:
        """Since the request's body was complete."""
        return round((self._now() - self._since) * 1e3, 3)

    def queued(self, behind: int, because: str) -> None:
        """The first choice was to wait."""
        place = QueuePlace(behind, because)
        self._decision = replace(self._decision, decision_ms=self.age_ms(), queue_place=place)

    def dispatched(self, picked: PickedWorker, *, dispatch: int, held_seconds: float | None) -> None:
        """The request goes to another worker; `held_seconds` is how long it waited so far, None if not."""
        age_ms, so_far = self.age_ms(), self._decision
        if picked.prediction.prompts:
            self._prompt = picked.prediction.prompts[0]
        self._decision = replace(
            so_far,
            decision_ms=so_far.decision_ms if so_far.queue_place or so_far.attempts else age_ms,
            attempts=(*so_far.attempts, Attempt(choice_of(picked), dispatch, age_ms)),
            held_ms=round(held_seconds * 1e3, 3) if held_seconds is not None else None,
        )

    def answered(self, answer: WorkerAnswer) -> None:
        """The worker's headers are here."""
        self._add(replace(self.attempt, answer=answer))

    def first_byte(self, after_ms: float | None = None) -> float:
        """The first token is here, or came at `after_ms`; returns its time, as `age_ms`."""
        after_ms = self.age_ms() if after_ms is None else after_ms
        self._add(replace(self.attempt, first_byte_after_ms=after_ms))
        return after_ms

    def attempt_failed(self, error: str) -> None:
        """The attempt ended with `error`; another one may follow."""
        self._add(replace(self.attempt, error=error))

    def became(self, outcome: Outcome) -> None:
        """How the request ends, as far as it is known; the last call counts."""
        self._decision = replace(self._decision, outcome=outcome)

    def generated(self, tokens: int) -> None:
        """The last attempt has ended, with so many tokens over all sequences."""
        self._decision = replace(self._decision, output_tokens=tokens)

    def ended(self) -> None:
        """The request is over. One without an outcome was cancelled by the server's own end."""
        outcome, prompt = self._decision.outcome, self._prompt
        self._decision = replace(
            self._decision,
            outcome="failed" if outcome == "in flight" else outcome,
            total_ms=self.age_ms(),
            prefix=RecordedPrefix.of(prompt.hashes, prompt.block_size_tokens) if prompt is not None else None,
        )

    def _add(self, attempt: Attempt) -> None:
        self._decision = replace(self._decision, attempts=(*self._decision.attempts[:-1], attempt))
