"""What a router reports to the operator every second: sums per model and per replica, in JSON.

`GET /internal/fleet/totals` answers a `FleetTotals`. All routers receive the reports of the same replicas: of
each, the newest counts. What is of the router itself adds up over routers: `ModelTotals`, and how much of a
replica's cache its own requests use again. Counts since the router's start only rise while
`FleetTotals.router` stays the same.

The answer has no version: unknown fields are ignored, and an absent one has its default.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Final

import msgspec

from warmfleet_contracts.cache.kv_events import Count
from warmfleet_contracts.decoding import decoded
from warmfleet_contracts.errors import ContractError

FLEET_TOTALS_PATH: Final = "/internal/fleet/totals"
MAX_TOTALS_BYTES: Final = 4 * 1024 * 1024
MAX_REPLICAS: Final = 4096
MAX_MODELS: Final = 4096
MAX_NAME_CHARS: Final = 512

_BOUND_RATIO: Final = 1.12
LATENCY_BOUNDS_MS: Final = tuple(_BOUND_RATIO**index for index in range(118))
"""Upper bounds of a `LatencyHistogram`'s buckets, from 1 ms to 10 minutes; one more bucket has no bound.

A percentile read from a bucket is at most 12 % off for any latencies in it; 1 ms stands for all below.
"""

CACHE_DEPTHS: Final = tuple(2.0**exponent for exponent in range(-6, 2))
"""Upper bounds of `MissTokens.capacity_depths`, in KV caches: from a 64th of one to two."""

MAX_AMOUNT: Final = 1e15
Amount = Annotated[float, msgspec.Meta(ge=0, le=MAX_AMOUNT)]
"""A rate, an age or a value: never negative, and always finite."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)]


class MissTokens(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prompt tokens that workers computed, by why they were not cached where the request went."""

    compulsory: Count = 0
    """No worker is known to have held them, and tokens that fill no block."""
    placement: Count = 0
    """Another ready worker held them."""
    capacity: Count = 0
    """A worker that lives evicted them: regret, which a larger cache would have spared."""
    lost: Count = 0
    """Their worker left or restarted."""
    rollout: Count = 0
    """Held, or held once, under another cache identity only."""
    capacity_depths: Annotated[tuple[Count, ...], msgspec.Meta(max_length=len(CACHE_DEPTHS))] = ()
    """Of `capacity` what a larger cache would have spared, by how much larger than the worker's it had to be:
    per bound of `CACHE_DEPTHS`, from the lowest on. Those beyond the last bound, or of an unknown depth, are
    in none; a router that does not measure depths reports none."""

    @property
    def by_cause(self) -> dict[str, int]:
        """The counts that add up."""
        return {
            "compulsory": self.compulsory,
            "placement": self.placement,
            "capacity": self.capacity,
            "lost": self.lost,
            "rollout": self.rollout,
        }


def within_depth(depths: Sequence[float], depth: float) -> float:
    """Of counts as in `MissTokens.capacity_depths`, what caches larger by `depth` would have spared.

    Interpolated between bounds.
    """
    tokens, lower = 0.0, 0.0
    for count, upper in zip(depths, CACHE_DEPTHS, strict=False):
        if depth <= lower:
            break
        tokens += count * min((depth - lower) / (upper - lower), 1.0)
        lower = upper
    return tokens


class LatencyHistogram(msgspec.Struct, frozen=True, omit_defaults=True):
    """Latencies counted per bucket of `LATENCY_BOUNDS_MS`. Bounds belong to the lower of two buckets."""

    counts: Annotated[tuple[Count, ...], msgspec.Meta(max_length=len(LATENCY_BOUNDS_MS) + 1)] = ()
    """From the lowest bucket on; those above the highest latency may be absent."""

    def percentile_ms(self, share: float) -> float | None:
        """The latency that `share` (0..1) of the requests did not exceed; None without any.

        Interpolated inside its bucket. At least the last bound for what lies above it.
        """
        cumulative = list(accumulate(self.counts))
        if not cumulative or not cumulative[-1]:
            return None
        rank = max(share * cumulative[-1], 1.0)
        bucket = bisect_left(cumulative, rank)
        if bucket >= len(LATENCY_BOUNDS_MS):
            return LATENCY_BOUNDS_MS[-1]
        upper = LATENCY_BOUNDS_MS[bucket]
        lower = upper / _BOUND_RATIO
        return upper - (cumulative[bucket] - rank) / self.counts[bucket] * (upper - lower)


class RefusedRequests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests that a router refused because every worker was busy, by the bound; since the router's start.

    A client that sends a refused request again, and states it, has asked once: only its first refusal counts
    by a bound.
    """

    queue_full: Count = 0
    wait: Count = 0
    """They would have waited for too long."""
    held_too_long: Count = 0
    """They did."""
    tenant_queue: Count = 0
    """Their tenant had its share of a queue that others may use."""
    retries: Count = 0
    """Refused again, by any of these bounds."""
    tokens: Count = 0
    """Of the prompts of the first three; by size where none was encoded yet."""

    @property
    def unmet(self) -> int:
        """Those that more replicas would have answered.

        Not those over their tenant's share: then more than half of the queue is full, which is demand enough,
        and one tenant's flood is none of the others'.
        """
        return self.queue_full + self.wait + self.held_too_long


class ModelTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One router's requests for a model."""

    queued_requests: Count = 0
    """Wait in the router for a worker with capacity."""
    queued_tokens: Count = 0
    """Of their prompts, cached ones included."""
    held_requests: Count = 0
    """Wait for a model that may sleep, and has no ready replica, to get one. At least 1 for some seconds
    after a request came that left, or may not be held: the model is to wake for it, too."""
    held_tokens: Count = 0
    """Of their prompts, by size, as none is encoded yet."""
    prompt_tokens: Count = 0
    """Of prompts that workers answered, since the router's start."""
    cached_tokens: Count = 0
    """How many of them were cached."""
    refused: RefusedRequests = RefusedRequests()
    """Requests that no worker got."""
    misses: MissTokens = MissTokens()
    """Since the router's start. Together at most the prompt tokens that were not cached."""
    first_token: LatencyHistogram = LatencyHistogram()
    """From the complete request, or from when its model was awake, to its first token, waits for capacity
    included; since the router's start."""
    inter_token: LatencyHistogram = LatencyHistogram()
    """Between tokens of one answer; since the router's start."""
    mean_inter_token: LatencyHistogram = LatencyHistogram()
    """Mean time between the tokens of an answer, once per answer that has ended; since the router's start."""


class ReplicaTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica, as its last report to this router describes it."""

    uid: Name
    """The pod's."""
    epoch: Name = ""
    """Of its worker process; empty before it proved itself."""
    ready: bool = False
    """Whether this router sends it requests."""
    draining: bool = False
    report_age_seconds: Amount | None = None
    """None: this process has not reported yet, and everything below is unknown."""
    block_size_tokens: Count = 0
    capacity_tokens: Count = 0
    """Of its KV cache; 0 while its engine cannot compute."""
    pinned_tokens: Count = 0
    """Blocks that live sequences hold."""
    evictable_tokens: Count = 0
    """Cached blocks that no sequence holds: free capacity."""
    queued_uncached_tokens: Count = 0
    """Prompt tokens that it admitted and did not compute yet."""
    running_sequences: Count = 0
    waiting_sequences: Count = 0
    seats: Count = 0
    """Most sequences that it runs at a time; 0: unknown."""
    prefill_tokens_per_second: Amount = 0.0
    """By its own measurement of step times; 0: not measured yet."""
    decode_tokens_per_second: Amount = 0.0
    """Of all sequences together, with every seat taken and contexts as long as now; 0: not measured yet."""
    unique_blocks: Count = 0
    """Blocks that no other replica holds."""
    unique_value_tokens_per_second: Amount = 0.0
    """Tokens of prompts that these blocks save per second, by their rate of reuse at this router."""


class FleetTotals(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one router reports."""

    router: Name
    """Names this life of the router: another one counts from 0."""
    uptime_seconds: Amount = 0.0
    models: Annotated[dict[Name, ModelTotals], msgspec.Meta(max_length=MAX_MODELS)] = {}
    """By model name as requests give it: a deployment answers to several."""
    replicas: Annotated[tuple[ReplicaTotals, ...], msgspec.Meta(max_length=MAX_REPLICAS)] = ()


_decoder = msgspec.json.Decoder(FleetTotals)


def encode_totals(totals: FleetTotals) -> bytes:
    """`totals` as the body of an answer."""
    return msgspec.json.encode(totals)


def decode_totals(body: bytes) -> FleetTotals:
    """The totals in the body of an answer.

    Raises:
        ContractError: malformed, too long, or with a value that no router sends, such as a negative count.
    """
    if len(body) > MAX_TOTALS_BYTES:
        raise ContractError(f"fleet totals of more than {MAX_TOTALS_BYTES} bytes")
    return decoded(_decoder.decode, body, "fleet totals")
