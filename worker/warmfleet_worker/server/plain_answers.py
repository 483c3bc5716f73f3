"""How far the open plain answers are, for load reports: routers see nothing of them before their end."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ANSWERS, PlainAnswer
from warmfleet_worker.engine.messages import SequenceUpdate


class PlainAnswerProgress:
    """How far one dispatch is."""

    def __init__(self, router_id: str, dispatch: int, submitted_at: float) -> None:
        self.router_id = router_id
        self._dispatch = dispatch
        self._submitted_at = submitted_at
        self.admitted_after_seconds: float | None = None
        self.first_token_after_seconds: float | None = None
        self._generated_tokens = 0

    def apply(self, update: SequenceUpdate, now: float) -> bool:
        """Add an update of one of its sequences; whether it brought the dispatch's first token."""
        if self.admitted_after_seconds is None and update.cached_tokens is not None:
            self.admitted_after_seconds = now - self._submitted_at
        is_first = self.first_token_after_seconds is None and bool(update.token_ids)
        if is_first:
            self.first_token_after_seconds = now - self._submitted_at
        self._generated_tokens += len(update.token_ids)
        return is_first

    def report(self) -> PlainAnswer | None:
        """As routers receive it; None before the first token."""
        if self.admitted_after_seconds is None or self.first_token_after_seconds is None:
            return None
        return PlainAnswer(
            self._dispatch,
            self.admitted_after_seconds,
            self.first_token_after_seconds,
            self._generated_tokens,
        )


class PlainAnswers:
    """The open plain answers of one worker.

    with plain_answers.open("router-0", dispatch=17, sequence_ids=[4, 5]):
        ...  # `apply` each report's updates; `next_report` has what routers should know
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._by_sequence: dict[int, PlainAnswerProgress] = {}
        self._with_token: OrderedDict[PlainAnswerProgress, None] = OrderedDict()
        """Never reported, latest first; then by their last report, oldest first."""

    @contextmanager
    def open(self, router_id: str, dispatch: int, sequence_ids: Sequence[int]) -> Iterator[None]:
        """Follow the sequences of a dispatch that were submitted just now."""
        progress = PlainAnswerProgress(router_id, dispatch, self._now())
        self._by_sequence.update(dict.fromkeys(sequence_ids, progress))
        try:
            yield
        finally:
            for sequence_id in sequence_ids:
                del self._by_sequence[sequence_id]
            self._with_token.pop(progress, None)

    def progress(self, sequence_id: int) -> PlainAnswerProgress:
        """Of the open answer that the sequence belongs to."""
        return self._by_sequence[sequence_id]

    def apply(self, updates: Iterable[SequenceUpdate]) -> bool:
        """Take in what the engine reported; whether an answer of a router got its first token."""
        is_urgent = False
        for update in updates:
            progress = self._by_sequence.get(update.sequence_id)
            if progress is not None and progress.apply(update, self._now()) and progress.router_id:
                self._with_token[progress] = None
                self._with_token.move_to_end(progress, last=False)
                is_urgent = True
        return is_urgent

    def next_report(self) -> dict[str, list[PlainAnswer]]:
        """`LoadReport.plain_answers`: all that have a token, or those whose last report is the oldest."""
        reported: dict[str, list[PlainAnswer]] = {}
        for progress in list(islice(self._with_token, MAX_REPORTED_ANSWERS)):
            self._with_token.move_to_end(progress)
            answer = progress.report()
            if answer is not None:
                reported.setdefault(progress.router_id, []).append(answer)
        return reported
