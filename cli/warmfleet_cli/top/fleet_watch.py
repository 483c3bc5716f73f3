"""Views of a fleet out of successive readings, with the wanted number that the operator's policy gives."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from warmfleet_cli.top.readings import Readings
from warmfleet_cli.top.views import ModelView, Percentiles, ReplicaView
from warmfleet_contracts.cache.fleet_totals import LatencyHistogram, ReplicaTotals
from warmfleet_operator.scaling.decide import decide
from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import (
    FleetSignals,
    Reading,
    SignalHistory,
    merged,
    newest_reports,
)


@dataclass(frozen=True, slots=True)
class _Remembered:
    """Of one model, from one round to the next."""

    history: SignalHistory = field(default_factory=SignalHistory)
    memory: ScalingMemory = field(default_factory=ScalingMemory)


@dataclass(frozen=True, slots=True)
class _Round:
    """One round of readings, prepared once for all models."""

    answers: Sequence[Reading]
    routers: int
    reports: Mapping[str, ReplicaTotals]
    """The newest of each replica."""
    labels: Mapping[str, str]
    """Names of replicas by uid."""
    now_seconds: float


class FleetWatch:
    """Turns each round of readings into one view per model.

    watch = FleetWatch(policy)
    views = watch.views(read_routers(clients), time.monotonic())
    """

    def __init__(self, policy: AutoscalingPolicy | None) -> None:
        """`policy` of all models; None: no number is wanted."""
        self._policy = policy
        self._models: dict[tuple[str, ...], _Remembered] = {}

    def views(self, readings: Readings, now_seconds: float) -> list[ModelView]:
        """One view per model, by its names. Rates and advice need a second reading."""
        answers = [Reading(totals) for totals in readings.totals]
        listed = {replica.uid: replica for totals in readings.totals for replica in totals.replicas}
        models = _models(readings, listed)
        now = _Round(
            answers=answers,
            routers=len(answers) + len(readings.problems),
            reports=newest_reports(answers),
            labels={endpoint.uid: endpoint.name for endpoint in readings.endpoints},
            now_seconds=now_seconds,
        )
        self._models = {names: self._models.get(names, _Remembered()) for names in models}
        return [self._view(names, now, [listed[uid] for uid in uids]) for names, uids in models.items()]

    def _view(self, names: tuple[str, ...], now: _Round, replicas: Sequence[ReplicaTotals]) -> ModelView:
        known = self._models[names]
        history, signals = merged(
            now.answers,
            now.reports,
            known.history,
            names=names,
            ready_uids=[replica.uid for replica in replicas if replica.ready],
            routers=now.routers,
            now_seconds=now.now_seconds,
        )
        memory, decision = self._decided(known.memory, signals, replicas, now.now_seconds)
        self._models[names] = _Remembered(history, memory)
        return ModelView(
            names=names,
            replicas=tuple(
                _replica(now.labels[replica.uid], replica, now.reports.get(replica.uid))
                for replica in replicas
            ),
            routers=len(now.answers),
            seconds=signals.traffic.seconds,
            prompt_tokens=signals.traffic.prompt_tokens,
            cached_tokens=signals.traffic.cached_tokens,
            misses=signals.traffic.misses.by_cause,
            queued_requests=signals.queued_requests + signals.held_requests,
            queued_tokens=signals.queued_tokens + signals.held_tokens,
            first_token=_latency(signals.first_token),
            inter_token=_latency(signals.inter_token),
            decision=decision,
            remark=_remark(signals),
        )

    def _decided(
        self,
        memory: ScalingMemory,
        signals: FleetSignals,
        replicas: Sequence[ReplicaTotals],
        now_seconds: float,
    ) -> tuple[ScalingMemory, ScalingDecision | None]:
        if self._policy is None:
            return memory, None
        staying = [replica for replica in replicas if not replica.draining]
        ready = sum(replica.ready for replica in staying)
        state = ReplicaState(
            spec_replicas=len(staying),
            ready=ready,
            pending=len(staying) - ready,
            stopping=len(replicas) - len(staying),
        )
        return decide(self._policy, memory, signals, state, now_seconds)


def _models(readings: Readings, listed: Mapping[str, ReplicaTotals]) -> dict[tuple[str, ...], list[str]]:
    """Uids of each model's replicas, by all of its names."""
    models: dict[tuple[str, ...], list[str]] = {}
    for endpoint in sorted(readings.endpoints, key=lambda endpoint: endpoint.name):
        if endpoint.uid in listed and endpoint.served_names:
            models.setdefault(endpoint.served_names, []).append(endpoint.uid)
    return dict(sorted(models.items()))


def _replica(name: str, listed: ReplicaTotals, report: ReplicaTotals | None) -> ReplicaView:
    if report is None:
        return ReplicaView(name, "Unknown")
    return ReplicaView(
        name=name,
        state="Draining" if report.draining else "Ready" if listed.ready else "NotReady",
        capacity_tokens=report.capacity_tokens,
        pinned_tokens=report.pinned_tokens,
        cached_tokens=report.evictable_tokens,
        running_sequences=report.running_sequences,
        waiting_sequences=report.waiting_sequences,
        queued_tokens=report.queued_uncached_tokens,
        unique_value_tokens_per_second=report.unique_value_tokens_per_second,
    )


def _latency(histogram: LatencyHistogram) -> Percentiles:
    values = (histogram.percentile_ms(share) for share in (0.5, 0.9, 0.99))
    return Percentiles(*(None if value is None else round(value, 1) for value in values))


def _remark(signals: FleetSignals) -> str:
    parts: Iterable[tuple[int, str]] = (
        (signals.missing_replicas, "replicas without a recent report"),
        (signals.missing_routers, "routers that do not answer"),
    )
    return ", ".join(f"{count} {text}" for count, text in parts if count)
