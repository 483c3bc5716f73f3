"""`/internal/fleet/totals`: sums per model and replica, for the operator's decisions about their number."""

import math
import time
from collections.abc import Callable, Iterable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from warmfleet_contracts.cache.fleet_totals import (
    MAX_AMOUNT,
    MAX_NAME_CHARS,
    FleetTotals,
    ModelTotals,
    ReplicaTotals,
    encode_totals,
)
from warmfleet_contracts.cache.kv_events import MAX_COUNT, LoadReport
from warmfleet_router.admission.admission import ModelWaits
from warmfleet_router.economics.model_counts import ModelCount, ModelCounts
from warmfleet_router.routing.cost import MIN_PREFILL_TOKEN_SECONDS, measured_rates
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_router.workers.prefix_index import UniqueValue

_NO_COUNT = ModelCount()
_NO_WAITS = ModelWaits()


class FleetTotalsEndpoint:
    """What this router knows of its replicas and of its own requests, now."""

    def __init__(
        self,
        *,
        life_id: str,
        fleet: Fleet,
        waits: Callable[[], Mapping[str, ModelWaits]],
        counts: ModelCounts,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waits` returns what waits, by model."""
        self._life_id = life_id
        self._fleet = fleet
        self._waits = waits
        self._counts = counts
        self._now = now
        self._started_at = now()

    async def totals(self, request: Request) -> Response:
        """One `FleetTotals` in JSON."""
        del request
        totals = FleetTotals(
            router=self._life_id,
            uptime_seconds=round(self._now() - self._started_at, 3),
            models=model_totals(self._waits(), self._counts.all()),
            replicas=replica_totals(self._fleet.workers(), self._fleet.index.unique_value),
        )
        return Response(encode_totals(totals), media_type="application/json")


def model_totals(waits: Mapping[str, ModelWaits], counts: Mapping[str, ModelCount]) -> dict[str, ModelTotals]:
    """Of every model that was asked for; `waits` as for the endpoint."""
    totals = {}
    for model in counts.keys() | waits.keys():
        waiting = waits.get(model, _NO_WAITS)
        count = counts.get(model, _NO_COUNT)
        totals[model[:MAX_NAME_CHARS]] = ModelTotals(
            queued_requests=waiting.queued_requests,
            queued_tokens=waiting.queued_tokens,
            held_requests=waiting.held_requests,
            held_tokens=waiting.held_tokens,
            prompt_tokens=min(count.prompt_tokens, MAX_COUNT),
            cached_tokens=min(count.cached_tokens, MAX_COUNT),
            refused=count.refused,
            misses=count.misses,
            first_token=count.first_token.histogram,
            inter_token=count.inter_token.histogram,
            mean_inter_token=count.mean_inter_token.histogram,
        )
    return totals


def replica_totals(
    workers: Iterable[WorkerStatus], unique_value: Callable[[str], UniqueValue]
) -> tuple[ReplicaTotals, ...]:
    """Every worker by its last report; of one that has not reported yet, that it is there.

    `unique_value` returns what only one worker holds, by uid.
    """
    return tuple(
        _reported(worker, unique_value(worker.endpoint.uid))
        if worker.hello is not None and math.isfinite(worker.report_age_seconds)
        else ReplicaTotals(uid=worker.endpoint.uid[:MAX_NAME_CHARS], epoch=worker.epoch[:MAX_NAME_CHARS])
        for worker in workers
    )


def _reported(worker: WorkerStatus, unique: UniqueValue) -> ReplicaTotals:
    load = worker.load
    size = worker.hello.block_size_tokens if worker.hello is not None else 0
    prefill, decode = _rates(load)
    return ReplicaTotals(
        uid=worker.endpoint.uid[:MAX_NAME_CHARS],
        epoch=worker.epoch[:MAX_NAME_CHARS],
        ready=worker.ready,
        draining=load.draining,
        report_age_seconds=round(worker.report_age_seconds, 3),
        block_size_tokens=min(size, MAX_COUNT),
        capacity_tokens=min(load.total_blocks * size, MAX_COUNT),
        pinned_tokens=min(load.pinned_blocks * size, MAX_COUNT),
        evictable_tokens=min(load.cached_blocks * size, MAX_COUNT),
        queued_uncached_tokens=load.queued_uncached_tokens,
        running_sequences=load.running_sequences,
        waiting_sequences=load.waiting_sequences,
        seats=load.max_running_sequences,
        prefill_tokens_per_second=prefill,
        decode_tokens_per_second=decode,
        unique_blocks=unique.blocks,
        unique_value_tokens_per_second=min(round(unique.reuses_per_second * size, 1), MAX_AMOUNT),
    )


def _rates(load: LoadReport) -> tuple[float, float]:
    """Tokens per second of prefill, and of decode with every seat taken; 0 while they are not measured."""
    rates, seats = measured_rates(load.step_time), load.max_running_sequences
    if rates is None:
        return 0.0, 0.0
    context_tokens = load.context_tokens / max(load.running_sequences, 1)
    per_sequence = rates.per_decode_sequence_seconds + rates.per_context_token_seconds * context_tokens
    step_seconds = rates.base_seconds + per_sequence * seats
    return (
        round(1 / max(rates.per_prefill_token_seconds, MIN_PREFILL_TOKEN_SECONDS), 1),
        round(seats / step_seconds, 1) if step_seconds > seats * MIN_PREFILL_TOKEN_SECONDS else 0.0,
    )
