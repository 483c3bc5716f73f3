"""How fast a stub worker answers, how far its answers are, and the seats that its sequences take."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from warmfleet_contracts.cache.kv_events import PlainAnswer
from warmfleet_contracts.cache.worker_api import (
    ADMITTED_AFTER_HEADER,
    FIRST_TOKEN_AFTER_HEADER,
    GENERATED_TOKENS_HEADER,
)


@dataclass(frozen=True, slots=True)
class Speed:
    """What a worker pretends to be able to do."""

    seats: int
    """Sequences that it runs at once."""
    first_token_seconds: float
    tokens_per_second: float
    """Of every sequence."""


@dataclass(slots=True)
class Progress:
    """How far an answer is, in seconds since its request came."""

    router_id: str
    dispatch: int
    admitted_after_seconds: float = 0.0
    first_token_after_seconds: float = 0.0
    generated_tokens: int = 0

    def report(self) -> PlainAnswer:
        return PlainAnswer(
            self.dispatch, self.admitted_after_seconds, self.first_token_after_seconds, self.generated_tokens
        )

    def headers(self) -> dict[str, str]:
        return {
            ADMITTED_AFTER_HEADER: f"{self.admitted_after_seconds:.6f}",
            FIRST_TOKEN_AFTER_HEADER: f"{self.first_token_after_seconds:.6f}",
            GENERATED_TOKENS_HEADER: str(self.generated_tokens),
        }


class Seats:
    """Seats for sequences, taken in the order of the requests."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.running = 0

    @property
    def waiting(self) -> int:
        """Sequences without a seat."""
        return sum(sequences for sequences, _ in self._waiting)

    @contextlib.asynccontextmanager
    async def taken(self, sequences: int) -> AsyncIterator[None]:
        """Wait until all `sequences` have a seat, and hold the seats in the block."""
        sequences = min(sequences, self._count)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((sequences, granted))
        self._grant()
        try:
            await granted
            yield
        finally:
            if granted.cancelled():
                self._waiting.remove((sequences, granted))
            else:
                self.running -= sequences
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            sequences, granted = self._waiting[0]
            if granted.cancelled() or self.running + sequences > self._count:
                return
            self._waiting.popleft()
            self.running += sequences
            granted.set_result(None)
