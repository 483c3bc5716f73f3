"""Time between the tokens of one stream, as far as it is the worker's."""

from collections.abc import Callable
from typing import Final

from warmfleet_router.proxy.sse_splitter import ends_stream

PAUSE_MS: Final = 5.0
"""A write to the client that takes longer is a pause: what the worker sends meanwhile is not timed."""


class TokenGaps:
    """What passes between a worker's tokens, without the time in which its client took no data.

    Tokens that arrive at once share the time since the ones before. The sequences of one request take turns,
    so that each waits for all of them.
    """

    def __init__(
        self,
        sequences: int,
        *,
        now_ms: Callable[[], float],
        record: Callable[[int, float], None],
        record_mean: Callable[[float], None],
    ) -> None:
        """`record(tokens, gap_ms)` is called for tokens that came, each so long after the one before.

        `record_mean(gap_ms)` is called at the end of an answer with more than one.
        """
        self._sequences = sequences
        self._now_ms = now_ms
        self._record = record
        self._record_mean = record_mean
        self._tokens = 0
        self._timed_tokens = 0
        self._timed_ms = 0.0
        self._arrived_ms = 0.0
        """When the last data arrived."""
        self._last_ms: float | None = None
        """When the last token arrived; None before the first, and after a pause."""

    def arrived(self, data: bytes, tokens: int) -> None:
        """`data`, whole events, is here; with it there are `tokens` in all."""
        now_ms = self._arrived_ms = self._now_ms()
        new = tokens - self._tokens
        if new <= 0 or ends_stream(data):
            return
        if self._last_ms is not None:
            waited_ms = (now_ms - self._last_ms) * self._sequences
            self._timed_tokens += new
            self._timed_ms += waited_ms
            self._record(new, waited_ms / new)
        self._tokens, self._last_ms = tokens, now_ms

    def written(self) -> None:
        """The client took what arrived last."""
        if self._now_ms() - self._arrived_ms > PAUSE_MS:
            self._last_ms = None

    def ended(self) -> None:
        """The answer is complete."""
        if self._timed_tokens:
            self._record_mean(self._timed_ms / self._timed_tokens)
