"""What a request costs on a worker, in milliseconds: for itself, for those there, and for those that come.

    ttft_ms        = wait for seat and blocks + (queued uncached + mine) / prefill rate + base
    externality_ms = extra step time x running sequences
    later_ms       = mine / prefill rate x LATER_SEQUENCES

Rates come from the worker's own online fit of its step time (`StepTimeFit`), flat up to a knee: prefill that
fits beside the decodes below it costs nothing. A worker without samples gets the median of its peers of the
same cache identity, and without any peer `PRIOR`.
"""

import math
import statistics
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit

MIN_SAMPLES: Final = 8
"""Steps behind a fit before it is used: the worker's has as many unknowns (`worker/engine/step_time`)."""

MIN_PREFILL_TOKEN_SECONDS: Final = 1e-7
"""No prefill is faster than ten million tokens per second; a noisy fit of an idle worker may be."""

LONGEST_STEP_SECONDS: Final = 3600.0
"""A fit with a larger coefficient, or with one that is no number, is wrong."""

PRIOR_SEAT_SECONDS: Final = 4.0
"""How long a sequence keeps its seat before any has finished: 64 tokens at 16 tokens per second."""

LATER_SEQUENCES: Final = 0.5
"""A prefill delays the sequences that come later by this share of its own time, all of them together. It is
the mean wait for a server that is busy half of its time, in times of service: u / (2 (1 - u)) at u = 0.5
(Pollaczek and Khinchine). `docs/decisions/0033-what-later-requests-wait.md` has what other numbers do."""


class RatesSource(StrEnum):
    """Where a worker's rates come from, best first."""

    MEASURED = "measured"
    PEERS = "peers"
    PRIOR = "prior"


class StepRates(msgspec.Struct, frozen=True, gc=False):
    """Coefficients of one worker's step time."""

    base_seconds: float
    per_prefill_token_seconds: float
    """At least `MIN_PREFILL_TOKEN_SECONDS`."""
    per_decode_sequence_seconds: float
    per_context_token_seconds: float
    source: RatesSource
    knee_tokens: int = 0

    def paid_tokens(self, prefill_tokens: int, decodes: int) -> int:
        """Prefill tokens that lengthen a step with so many decodes: those above the knee."""
        return max(prefill_tokens - max(self.knee_tokens - decodes, 0), 0)


PRIOR: Final = StepRates(
    base_seconds=0.010,
    per_prefill_token_seconds=0.0005,
    per_decode_sequence_seconds=0.002,
    per_context_token_seconds=0.0,
    source=RatesSource.PRIOR,
)
"""For a fleet in which no worker has run a step yet: 2,000 prompt tokens per second. Between equal workers
only the order matters, and the first answers replace it."""


class WorkerLoad(msgspec.Struct, frozen=True, gc=False):
    """A worker's report plus what this router sent since: all that the cost depends on."""

    running_sequences: int = 0
    waiting_sequences: int = 0
    max_running_sequences: int = 0
    """0 means unknown: no wait for a seat is predicted."""
    queued_uncached_tokens: int = 0
    context_tokens: int = 0
    total_blocks: int = 0
    """0 means unknown: no wait for blocks is predicted."""
    pinned_blocks: int = 0
    fixed_batched_tokens: int = 0
    """Most tokens of a step; 0: it is no set number, or unknown."""

    @property
    def sequences(self) -> int:
        return self.running_sequences + self.waiting_sequences


class Work(msgspec.Struct, frozen=True, gc=False):
    """What one request would cost one worker, in tokens, blocks and sequences."""

    uncached_tokens: int
    """Prompt tokens that the worker would have to compute."""
    needed_blocks: int
    """Blocks that the prompt would pin."""
    sequences: int = 1


class CostTerms(msgspec.Struct, frozen=True, gc=False):
    """One candidate's cost, term by term, in milliseconds."""

    wait_ms: float
    prefill_ms: float
    base_ms: float
    externality_ms: float
    later_ms: float

    @property
    def ttft_ms(self) -> float:
        """Time to its first token."""
        return self.wait_ms + self.prefill_ms + self.base_ms

    @property
    def total_ms(self) -> float:
        """What workers are ranked by."""
        return self.wait_ms + self.prefill_ms + self.base_ms + self.externality_ms + self.later_ms


class WorkerPrices(msgspec.Struct, frozen=True, gc=False):
    """What requests cost on one worker under one load: all of it that no request changes."""

    rates: StepRates
    running_sequences: int
    queued_tokens: int
    free_tokens: int
    """Tokens, of the queue or of a prompt, that fit below the knee."""
    base_ms: float
    free_seats: float
    """Negative where sequences wait; infinite where seats are unknown."""
    free_blocks: float
    """The same of KV blocks."""
    blocks_per_sequence: float
    seat_ms: float
    """From the end of one sequence to that of the next: their ends are spread evenly over a seat's time."""

    def cost(self, work: Work) -> CostTerms:
        """What `work` costs.

        The queue holds the remaining prefill of a leader whose prefix `work` would share, so a request that
        follows it is charged the wait.
        """
        rates, running = self.rates, self.running_sequences
        # Decisions price hundreds of workers: comparisons, which are quicker than calls of `max`.
        queued_tokens = self.queued_tokens - self.free_tokens
        tokens = queued_tokens + work.uncached_tokens
        tokens = max(tokens, 0)
        prefill_seconds = tokens * rates.per_prefill_token_seconds
        own_tokens = tokens - queued_tokens if queued_tokens > 0 else tokens
        own_seconds = own_tokens * rates.per_prefill_token_seconds
        externality_seconds = 0.0
        if running:
            # What every sequence that already runs waits longer: my prefill, and my row in a decode step.
            externality_seconds = running * (own_seconds + rates.per_decode_sequence_seconds * work.sequences)
        # Enough sequences have to end first.
        ends = work.sequences - self.free_seats
        short_blocks = work.needed_blocks - self.free_blocks
        if short_blocks > 0:
            ends = max(ends, math.ceil(short_blocks / self.blocks_per_sequence))
        return CostTerms(
            wait_ms=ends * self.seat_ms if ends > 0 else 0.0,
            prefill_ms=prefill_seconds * 1e3,
            base_ms=self.base_ms,
            externality_ms=externality_seconds * 1e3,
            later_ms=own_seconds * LATER_SEQUENCES * 1e3,
        )


def worker_prices(load: WorkerLoad, rates: StepRates, *, seat_seconds: float) -> WorkerPrices:
    """The prices of a worker under `load`; `seat_seconds` is how long a sequence keeps its seat."""
    running = load.running_sequences
    base_seconds = (
        rates.base_seconds
        + rates.per_decode_sequence_seconds * running
        + rates.per_context_token_seconds * load.context_tokens
    )
    most_seats, total_blocks = load.max_running_sequences, load.total_blocks
    seated = max(running, 1)
    return WorkerPrices(
        rates=rates,
        running_sequences=running,
        queued_tokens=load.queued_uncached_tokens,
        free_tokens=max(rates.knee_tokens - running, 0),
        base_ms=base_seconds * 1e3,
        free_seats=most_seats - load.sequences if most_seats else math.inf,
        free_blocks=total_blocks - load.pinned_blocks if total_blocks else math.inf,
        blocks_per_sequence=max(load.pinned_blocks / seated, 1.0),
        seat_ms=seat_seconds / seated * 1e3,
    )


SMALLEST_WORK: Final = Work(uncached_tokens=0, needed_blocks=0)


class PriceFloor(msgspec.Struct, frozen=True, gc=False):
    """A bound below `WorkerPrices.cost`: the price of one sequence without a wait for its blocks."""

    idle_ms: float
    """Of one sequence that needs neither prefill nor blocks, a wait for its seat included."""
    per_token_ms: float
    """What a prompt token costs the request, those that run and those that come later."""
    free_tokens: int
    """Prompt tokens that cost nothing: they fit below the knee, beside the queue."""
    free_blocks: float

    def at(self, uncached_tokens: int) -> float:
        """No request with so many uncached prompt tokens costs less, in milliseconds."""
        paid_tokens = uncached_tokens - self.free_tokens
        return self.idle_ms + paid_tokens * self.per_token_ms if paid_tokens > 0 else self.idle_ms

    def is_price_of(self, work: Work) -> bool:
        """Whether `work` costs no more than that, but for rounding."""
        return work.sequences == 1 and work.needed_blocks <= self.free_blocks


def price_floor(prices: WorkerPrices) -> PriceFloor:
    """The least that a request costs on a worker."""
    per_token_seconds = prices.rates.per_prefill_token_seconds
    return PriceFloor(
        idle_ms=prices.cost(SMALLEST_WORK).total_ms,
        per_token_ms=per_token_seconds * (1 + prices.running_sequences + LATER_SEQUENCES) * 1e3,
        free_tokens=max(prices.free_tokens - prices.queued_tokens, 0),
        free_blocks=prices.free_blocks,
    )


def measured_rates(fit: StepTimeFit) -> StepRates | None:
    """The worker's own rates, or None while too few steps, or no prefill, stand behind them."""
    coefficients = (
        fit.base_seconds,
        fit.per_prefill_token_seconds,
        fit.per_decode_sequence_seconds,
        fit.per_context_token_seconds,
    )
    is_possible = all(abs(coefficient) <= LONGEST_STEP_SECONDS for coefficient in coefficients)
    if fit.samples < MIN_SAMPLES or fit.per_prefill_token_seconds <= 0 or not is_possible:
        return None
    return StepRates(
        base_seconds=max(fit.base_seconds, 0.0),
        per_prefill_token_seconds=max(fit.per_prefill_token_seconds, MIN_PREFILL_TOKEN_SECONDS),
        per_decode_sequence_seconds=max(fit.per_decode_sequence_seconds, 0.0),
        per_context_token_seconds=max(fit.per_context_token_seconds, 0.0),
        source=RatesSource.MEASURED,
        knee_tokens=max(fit.knee_tokens, 0),
    )


def median_rates(fits: Iterable[StepTimeFit]) -> StepRates:
    """The rates of a worker without measurements: the median of its peers', or `PRIOR`."""
    measured = [rates for fit in fits if (rates := measured_rates(fit)) is not None]
    if not measured:
        return PRIOR
    return StepRates(
        base_seconds=statistics.median(rates.base_seconds for rates in measured),
        per_prefill_token_seconds=statistics.median(rates.per_prefill_token_seconds for rates in measured),
        per_decode_sequence_seconds=statistics.median(
            rates.per_decode_sequence_seconds for rates in measured
        ),
        per_context_token_seconds=statistics.median(rates.per_context_token_seconds for rates in measured),
        source=RatesSource.PEERS,
        knee_tokens=round(statistics.median(rates.knee_tokens for rates in measured)),
    )


def worker_load(
    report: LoadReport,
    *,
    unreported_tokens: int,
    unreported_seats: int,
    unreported_blocks: int,
    ended_seats: int = 0,
    ended_blocks: int = 0,
) -> WorkerLoad:
    """A report plus the dispatches of this router that it does not include yet, less those that ended since.

    A sequence that waits at the worker takes the seat of one that ended.
    """
    living = max(report.running_sequences + report.waiting_sequences - ended_seats, 0)
    free_seats = max(report.max_running_sequences - living, 0)
    seated = unreported_seats if report.max_running_sequences == 0 else min(unreported_seats, free_seats)
    running = min(report.running_sequences, living) + seated
    return WorkerLoad(
        running_sequences=running,
        waiting_sequences=living + unreported_seats - running,
        max_running_sequences=report.max_running_sequences,
        queued_uncached_tokens=report.queued_uncached_tokens + unreported_tokens,
        context_tokens=report.context_tokens,
        total_blocks=report.total_blocks,
        pinned_blocks=max(report.pinned_blocks - ended_blocks, 0) + unreported_blocks,
        fixed_batched_tokens=report.fixed_batched_tokens or 0,
    )
