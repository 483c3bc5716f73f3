"""Time between the tokens of one stream, as far as it is the worker's."""

from collections.abc import Callable
from typing import Final

PAUSE_SECONDS: Final = 0.005
"""A write to the client that takes longer is a pause: what the worker sends meanwhile is not timed."""


class TokenGaps:
    """What passes between a worker's tokens, without the time in which its client took no data.

    Tokens that arrive at once share the time since the ones before. The sequences of one request take turns,
    so that each waits for all of them.
    """

    __slots__ = (
        "_blocked_at",
        "_last",
        "_now",
        "_per_sequence_ms",
        "_record",
        "_record_mean",
        "_timed_ms",
        "_timed_tokens",
    )

    def __init__(
        self,
        sequences: int,
        *,
        now: Callable[[], float],
        record: Callable[[float, int], None],
        record_mean: Callable[[float], None],
    ) -> None:
        """`now` in seconds. `record(gap_ms, tokens)` is called for tokens, each so long after the one before.

        `record_mean(gap_ms)` is called at the end of an answer with more than one.
        """
        self._now = now
        self._record = record
        self._record_mean = record_mean
        self._per_sequence_ms = sequences * 1e3
        self._timed_tokens = 0
        self._timed_ms = 0.0
        self._last: float | None = None
        """When the last token arrived; None before the first, and after a pause."""
        self._blocked_at = 0.0

    def arrived(self, tokens: int) -> None:
        """So many tokens are here, at least one."""
        now, last = self._now(), self._last
        self._last = now
        if last is not None:
            waited_ms = (now - last) * self._per_sequence_ms
            self._timed_tokens += tokens
            self._timed_ms += waited_ms
            self._record(waited_ms / tokens, tokens)

    def blocked(self) -> None:
        """The client may not take at once what arrived last."""
        self._blocked_at = self._now()

    def taken(self) -> None:
        """It has taken that."""
        if self._now() - self._blocked_at > PAUSE_SECONDS:
            self._last = None

    def ended(self) -> None:
        """The answer is complete."""
        if self._timed_tokens:
            self._record_mean(self._timed_ms / self._timed_tokens)
