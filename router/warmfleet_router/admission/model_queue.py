"""Who waits for the workers of one model, how fast the wait goes, and what an answer takes."""

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from warmfleet_router.admission.fair_queue import FairQueue
from warmfleet_router.admission.fair_share import FairShare
from warmfleet_router.admission.queue_bypass import Prefills
from warmfleet_router.admission.service_rate import ServiceRate

OUTPUT_WEIGHT: Final = 2.0
"""Cost of a generated token in prompt tokens that are computed (VTC, section 4.1: w_q = 2, w_p = 1)."""
PRIOR_OUTPUT_TOKENS: Final = 128.0
"""Expected length of an answer while none has ended."""
OUTPUT_EWMA_WEIGHT: Final = 0.1

T = TypeVar("T")


class ModelQueue(Generic[T]):
    """One model's queue. Retries stand in front: they have had their turn and only look for a worker."""

    def __init__(self, model: str, now: Callable[[], float]) -> None:
        self.model = model
        self.fair: FairQueue[T] = FairQueue()
        self.retries: list[T] = []
        self.drain = ServiceRate()
        self.shares = FairShare(now)
        self.prefills = Prefills()
        self.unready_since: float | None = None
        """Since when no worker is ready, seen while somebody waited."""
        self._output_tokens = PRIOR_OUTPUT_TOKENS

    @property
    def waiting(self) -> int:
        """Requests that wait, retries included."""
        return len(self.fair) + len(self.retries)

    def everyone(self) -> Iterator[T]:
        """All that wait, in no order."""
        yield from self.retries
        for waiting in self.fair:
            yield waiting.item

    def expected_output_tokens(self, limit_tokens: int | None, sequences: int) -> float:
        """What answers have been long lately, at most what is asked for."""
        expected = self._output_tokens if limit_tokens is None else min(self._output_tokens, limit_tokens)
        return expected * sequences

    def observe_output(self, tokens: int, sequences: int) -> None:
        """An answer ended well."""
        self._output_tokens += OUTPUT_EWMA_WEIGHT * (tokens / sequences - self._output_tokens)


def cost_of(uncached_tokens: int, output_tokens: float) -> float:
    """What a request costs its tenant, in prompt tokens that are computed; at least 1."""
    return max(uncached_tokens + OUTPUT_WEIGHT * output_tokens, 1.0)
