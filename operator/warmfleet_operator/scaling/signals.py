"""One tick's view of a model's fleet, made of the totals of all routers. Pure.

The newest report of each replica counts; what is of the routers themselves adds up, the reuse that they have
seen of a replica's blocks too. A replica is missing
when it has no recent report, or one that cannot be right: replicas of a deployment are equal, so a KV cache
ten times as large as the others' is an error. Times are ages and differences: no two clocks have to agree.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import sub
from statistics import median_low
from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import (
    MAX_AMOUNT,
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    ModelTotals,
    RefusedRequests,
    ReplicaTotals,
)

STALE_SECONDS: Final = 15.0
"""A report older than this is none. Workers report at least every few seconds."""
TRAFFIC_SECONDS: Final = 30.0
"""Rates of tokens are those of this time."""
LATENCY_SECONDS: Final = 60.0
"""Percentiles are those of this time."""
SAMPLE_SECONDS: Final = 5.0
"""Between two samples of the counters that are kept."""
IMPLAUSIBLE: Final = 10
"""Times the median of the replicas."""
MAX_ROUTERS: Final = 100
"""Of one release: the chart takes no more. Of others the signals count as missing."""
_REFUSED_FIELDS: Final = RefusedRequests.__struct_fields__


@dataclass(frozen=True, slots=True)
class Reading:
    """A router's last answer."""

    totals: FleetTotals
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What changed within `seconds`, in tokens of prompts unless a name has another unit."""

    seconds: float = 0.0
    """0: nothing is known yet."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    misses: MissTokens = field(default_factory=MissTokens)
    requests: int = 0
    generated_tokens: int = 0
    refused_requests: int = 0
    """That more replicas would have answered."""
    refused_tokens: int = 0

    @property
    def arrivals(self) -> int:
        """Requests that were answered or refused."""
        return self.requests + self.refused_requests

    @property
    def hit_ratio(self) -> float:
        """Share of prompt tokens that were cached; 0 without any."""
        return min(1.0, self.cached_tokens / self.prompt_tokens) if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class FleetSignals:
    """All that the policy knows of a model's fleet."""

    replicas: tuple[ReplicaTotals, ...] = ()
    """Those with a usable report, by uid."""
    missing_replicas: int = 0
    """Ready pods without one."""
    missing_routers: int = 0
    """Ready routers that did not answer: what they queue is not known."""
    routers: int = 0
    """That answered."""
    queued_requests: int = 0
    queued_tokens: int = 0
    held_requests: int = 0
    held_tokens: int = 0
    traffic: Traffic = Traffic()
    first_token: LatencyHistogram = field(default_factory=LatencyHistogram)
    inter_token: LatencyHistogram = field(default_factory=LatencyHistogram)
    mean_inter_token: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Per answer."""

    @property
    def waiting_requests(self) -> int:
        """In routers, for a worker with capacity or for a model to wake."""
        return self.queued_requests + self.held_requests

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.routers > 0 and not self.missing_routers and not self.missing_replicas


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one model at one time, by life of router."""

    at_seconds: float
    counters: Mapping[str, ModelTotals] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SignalHistory:
    """Samples of the last minute, oldest first."""

    samples: tuple[Sample, ...] = ()


def newest_reports(readings: Iterable[Reading]) -> dict[str, ReplicaTotals]:
    """The newest report of each replica, with its age now; of equally old ones the first router's.

    All routers see the same blocks, and each counts the use of its own requests: the values of what only one
    replica holds add up, over the routers that follow the same life of it.
    """
    newest: dict[str, ReplicaTotals] = {}
    ages: dict[str, float] = {}
    values: dict[tuple[str, str], float] = {}
    for reading in readings:
        for replica in reading.totals.replicas:
            if replica.report_age_seconds is None:
                continue
            age = replica.report_age_seconds + reading.age_seconds
            if age > STALE_SECONDS:
                continue
            if age < ages.get(replica.uid, STALE_SECONDS + 1):
                newest[replica.uid], ages[replica.uid] = replica, age
            if replica.unique_value_tokens_per_second:
                life = replica.uid, replica.epoch
                values[life] = values.get(life, 0.0) + replica.unique_value_tokens_per_second
    for (uid, epoch), value in values.items():
        replica = newest[uid]
        if replica.epoch == epoch and replica.unique_value_tokens_per_second != value:
            newest[uid] = replace(replica, unique_value_tokens_per_second=min(value, MAX_AMOUNT))
    return newest


def merged(
    readings: Sequence[Reading],
    reports: Mapping[str, ReplicaTotals],
    history: SignalHistory,
    *,
    names: Iterable[str],
    ready_uids: Iterable[str],
    routers: int,
    now_seconds: float,
    with_latencies: bool = True,
) -> tuple[SignalHistory, FleetSignals]:
    """One model's signals, and the history for the next call.

    Args:
        readings: the last answer of every router that answers, at most `MAX_ROUTERS`.
        reports: `newest_reports(readings)`, made once for all models.
        history: what the last call for this model returned.
        names: names by which requests ask for the model.
        ready_uids: uids of its ready pods: all of them must have a usable report.
        routers: how many routers are ready.
        now_seconds: on any clock that rises.
        with_latencies: whether the policy has a latency target; without one the histograms are left out.
    """
    names, ready_uids = tuple(names), tuple(ready_uids)
    answers = readings[:MAX_ROUTERS]
    counters = {reading.totals.router: _of_model(reading.totals, names) for reading in answers}
    uptimes = {reading.totals.router: reading.totals.uptime_seconds for reading in answers}
    usable = _usable([reports[uid] for uid in sorted(ready_uids) if uid in reports])
    past = [sample for sample in history.samples if sample.at_seconds < now_seconds]
    first = inter = mean_inter = LatencyHistogram()
    if with_latencies:
        _, pairs = _since(past, counters, uptimes, now_seconds, LATENCY_SECONDS)
        first = _together([_less(now.first_token, before.first_token) for now, before in pairs])
        inter = _together([_less(now.inter_token, before.inter_token) for now, before in pairs])
        mean_inter = _together([_less(now.mean_inter_token, old.mean_inter_token) for now, old in pairs])
    signals = FleetSignals(
        replicas=tuple(usable),
        missing_replicas=len(ready_uids) - len(usable),
        missing_routers=max(0, routers - len(counters)),
        routers=len(counters),
        queued_requests=sum(model.queued_requests for model in counters.values()),
        queued_tokens=sum(model.queued_tokens for model in counters.values()),
        held_requests=sum(model.held_requests for model in counters.values()),
        held_tokens=sum(model.held_tokens for model in counters.values()),
        traffic=_traffic(*_since(past, counters, uptimes, now_seconds, TRAFFIC_SECONDS)),
        first_token=first,
        inter_token=inter,
        mean_inter_token=mean_inter,
    )
    return _with_sample(history, Sample(now_seconds, counters)), signals


def _with_sample(history: SignalHistory, sample: Sample) -> SignalHistory:
    samples = history.samples
    if samples and sample.at_seconds < samples[-1].at_seconds:
        samples = ()  # the clock was set back
    if samples and sample.at_seconds - samples[-1].at_seconds < SAMPLE_SECONDS:
        return history if samples is history.samples else SignalHistory((sample,))
    oldest = sample.at_seconds - LATENCY_SECONDS - SAMPLE_SECONDS
    return SignalHistory((*(kept for kept in samples if kept.at_seconds >= oldest), sample))


def _since(
    past: Sequence[Sample],
    counters: Mapping[str, ModelTotals],
    uptimes: Mapping[str, float],
    now_seconds: float,
    within_seconds: float,
) -> tuple[float, list[tuple[ModelTotals, ModelTotals]]]:
    """Each router's counters now and at the sample that is `within_seconds` old, and how old that is.

    At first it is the oldest sample. A router that it does not have counts from its start, if that was later,
    or from the first sample that has it.
    """
    if not past:
        return 0.0, []
    start = next((one for one in reversed(past) if now_seconds - one.at_seconds >= within_seconds), past[0])
    seconds = now_seconds - start.at_seconds
    pairs = []
    for router, now in counters.items():
        before = start.counters.get(router)
        if before is None:
            if uptimes[router] <= seconds:
                before = ModelTotals()
            else:
                before = next((one.counters[router] for one in past if router in one.counters), now)
        pairs.append((now, before))
    return seconds, pairs


def _traffic(seconds: float, pairs: Sequence[tuple[ModelTotals, ModelTotals]]) -> Traffic:
    return Traffic(
        seconds=round(seconds, 3),
        prompt_tokens=_risen((now.prompt_tokens, before.prompt_tokens) for now, before in pairs),
        cached_tokens=_risen((now.cached_tokens, before.cached_tokens) for now, before in pairs),
        misses=_added_misses([_risen_misses(now.misses, before.misses) for now, before in pairs]),
        requests=_risen((sum(now.first_token.counts), sum(old.first_token.counts)) for now, old in pairs),
        generated_tokens=_risen(
            (sum(now.inter_token.counts), sum(old.inter_token.counts)) for now, old in pairs
        ),
        refused_requests=_risen((now.refused.unmet, before.refused.unmet) for now, before in pairs),
        refused_tokens=_risen((now.refused.tokens, before.refused.tokens) for now, before in pairs),
    )


def _risen(pairs: Iterable[tuple[int, int]]) -> int:
    """By how much counters rose; those that fall are of another life, and count as no change."""
    return sum([now - before for now, before in pairs if now > before])


def _risen_misses(now: MissTokens, before: MissTokens) -> MissTokens:
    known = before.by_cause
    depths = zip_longest(now.capacity_depths, before.capacity_depths, fillvalue=0)
    return MissTokens(
        **{cause: _risen([(tokens, known[cause])]) for cause, tokens in now.by_cause.items()},
        capacity_depths=tuple(_risen([pair]) for pair in depths),
    )


def _added_misses(parts: Sequence[MissTokens]) -> MissTokens:
    tokens: Counter[str] = Counter()
    for part in parts:
        tokens.update(part.by_cause)
    return MissTokens(**tokens, capacity_depths=_added([part.capacity_depths for part in parts]))


def _added(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sums of what stands at the same place."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def _of_model(totals: FleetTotals, names: Iterable[str]) -> ModelTotals:
    found = [totals.models[name] for name in names if name in totals.models]
    return found[0] if len(found) == 1 else _sum(found)


def _less(now: LatencyHistogram, before: LatencyHistogram) -> LatencyHistogram:
    if now.counts == before.counts:
        return LatencyHistogram()
    known = before.counts
    if len(known) < len(now.counts):
        known = (*known, *[0] * (len(now.counts) - len(known)))
    risen = tuple(map(sub, now.counts, known))
    return LatencyHistogram(risen if min(risen, default=0) >= 0 else tuple(max(0, count) for count in risen))


def _sum(parts: Sequence[ModelTotals]) -> ModelTotals:
    if len(parts) == 1:
        return parts[0]
    return ModelTotals(
        queued_requests=sum(part.queued_requests for part in parts),
        queued_tokens=sum(part.queued_tokens for part in parts),
        held_requests=sum(part.held_requests for part in parts),
        held_tokens=sum(part.held_tokens for part in parts),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        refused=RefusedRequests(
            **{field: sum(getattr(part.refused, field) for part in parts) for field in _REFUSED_FIELDS}
        ),
        misses=_added_misses([part.misses for part in parts]),
        first_token=_together([part.first_token for part in parts]),
        inter_token=_together([part.inter_token for part in parts]),
        mean_inter_token=_together([part.mean_inter_token for part in parts]),
    )


def _together(histograms: Sequence[LatencyHistogram]) -> LatencyHistogram:
    counts = [histogram.counts for histogram in histograms if histogram.counts]
    if len(counts) < 2:
        return LatencyHistogram(counts[0] if counts else ())
    return LatencyHistogram(_added(counts))


def _usable(reports: Sequence[ReplicaTotals]) -> list[ReplicaTotals]:
    """Those that can be right."""
    possible = [
        report
        for report in reports
        if report.capacity_tokens > 0
        and report.pinned_tokens + report.evictable_tokens <= report.capacity_tokens
        and not 0 < report.seats < report.running_sequences
    ]
    if len(possible) < 2:
        return possible
    # The lower median: of two that differ that much, the larger one is wrong.
    capacity = median_low([report.capacity_tokens for report in possible])
    queued = median_low([report.queued_uncached_tokens for report in possible])
    seats = median_low([report.seats for report in possible])
    sequences = median_low([_sequences(report) for report in possible])
    return [
        report
        for report in possible
        if capacity < IMPLAUSIBLE * report.capacity_tokens < IMPLAUSIBLE**2 * capacity
        and report.queued_uncached_tokens <= IMPLAUSIBLE * max(queued, capacity)
        and _sequences(report) <= IMPLAUSIBLE * max(sequences, seats or capacity)
    ]


def _sequences(report: ReplicaTotals) -> int:
    return report.running_sequences + report.waiting_sequences
