"""Progress of a fetch as log lines, and its deadline."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from warmfleet_worker.model_store.fetch.errors import FetchError

LOG_EVERY_SECONDS: Final = 5.0

log = structlog.get_logger("warmfleet.fetch")


class Progress:
    """Reports the progress of one fetch, as log lines or to `on_stage`, and ends it at its deadline."""

    def __init__(
        self,
        timeout_seconds: float,
        now: Callable[[], float] = time.monotonic,
        on_stage: Callable[..., object] | None = None,
    ) -> None:
        """`on_stage` gets a stage, and figures by their names; by default the log does."""
        self._now = now
        self._on_stage = on_stage
        self._timeout_seconds = timeout_seconds
        self._deadline = now() + timeout_seconds
        self._last: tuple[str, float] = ("", 0.0)

    def report(self, stage: str, **figures: object) -> None:
        """Log a stage when it begins, and then every few seconds.

        Raises:
            FetchError: the time is up.
        """
        now = self._now()
        if now >= self._deadline:
            last = ": ".join(str(part) for part in (stage, figures.get("reason")) if part)
            raise FetchError(f"not fetched within {self._timeout_seconds:g} s; last: {last}")
        last_stage, logged_at = self._last
        if stage != last_stage or now - logged_at >= LOG_EVERY_SECONDS:
            self._last = (stage, now)
            (self._on_stage or log.info)(stage, **figures)

    def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the deadline."""
        time.sleep(max(0.0, min(seconds, self._deadline - self._now())))
