"""Signals of a fleet for the scaling policy: replicas under a given load, and ticks one after the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from warmfleet_contracts.cache.fleet_totals import (
    LATENCY_BOUNDS_MS,
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    ModelTotals,
    ReplicaTotals,
)
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.decide import decide
from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import (
    FleetSignals,
    Reading,
    SignalHistory,
    Traffic,
    merged,
    newest_reports,
)

CAPACITY_TOKENS: Final = 100_000
SUPPLY_TOKENS: Final = 95_000
"""Of one replica, before anything was learnt."""
SEATS: Final = 64
PREFILL_RATE: Final = 10_000.0
DECODE_RATE: Final = 1_000.0
TICK_SECONDS: Final = 2.0
FULL_MINUTES: Final = 400.0
"""Seconds: longer than a fleet without requests, as `loaded`, must need a shrink. With some: `WATCHED`."""
WATCHED: Final = 700.0
"""Seconds: longer than a load has to be watched before the first shrink."""
POLICY: Final = AutoscalingPolicy.of(AutoscalingSpec.model_validate({"maxReplicas": 20}))


def replica(uid: str, **fields: Any) -> ReplicaTotals:
    """A replica that reported a second ago and has nothing to do."""
    values: dict[str, Any] = {
        "uid": uid,
        "epoch": f"epoch of {uid}",
        "ready": True,
        "report_age_seconds": 1.0,
        "block_size_tokens": 16,
        "capacity_tokens": CAPACITY_TOKENS,
        "seats": SEATS,
        "prefill_tokens_per_second": PREFILL_RATE,
        "decode_tokens_per_second": DECODE_RATE,
    }
    return ReplicaTotals(**{**values, **fields})


def fleet(count: int, **fields: Any) -> tuple[ReplicaTotals, ...]:
    """Equal replicas."""
    return tuple(replica(f"pod-{number}", **fields) for number in range(count))


def signals(replicas: Iterable[ReplicaTotals] = (), **fields: Any) -> FleetSignals:
    """Complete signals of one router."""
    values: dict[str, Any] = {"replicas": tuple(replicas), "routers": 1, "traffic": Traffic(seconds=30.0)}
    return FleetSignals(**{**values, **fields})


def loaded(count: int, percent: int, **fields: Any) -> FleetSignals:
    """Signals of replicas whose live sequences hold this percent of their supply."""
    return signals(fleet(count, pinned_tokens=SUPPLY_TOKENS * percent // 100, **fields))


def misses(prompt_tokens: int, *, seconds: float = 30.0, cached: int = 0, **kinds: Any) -> Traffic:
    """Prompts of the last seconds, and why their tokens were computed."""
    return Traffic(
        seconds=seconds, prompt_tokens=prompt_tokens, cached_tokens=cached, misses=MissTokens(**kinds)
    )


def latencies(milliseconds: float, count: int = 100) -> LatencyHistogram:
    """All requests took about so long."""
    bucket = next(index for index, bound in enumerate(LATENCY_BOUNDS_MS) if bound >= milliseconds)
    return LatencyHistogram((*[0] * bucket, count))


def at_rest(replicas: int) -> ReplicaState:
    """All of them ready, nothing in progress."""
    return ReplicaState(spec_replicas=replicas, ready=replicas)


@dataclass
class Ticks:
    """The policy's ticks, every two seconds."""

    policy: AutoscalingPolicy
    memory: ScalingMemory = field(default_factory=ScalingMemory)
    now_seconds: float = 1_000.0

    def tick(self, view: FleetSignals, state: ReplicaState) -> ScalingDecision:
        """One tick; the clock goes on after it."""
        self.memory, decision = decide(self.policy, self.memory, view, state, self.now_seconds)
        self.now_seconds += TICK_SECONDS
        return decision

    def run(self, view: FleetSignals, state: ReplicaState, seconds: float) -> list[ScalingDecision]:
        """Ticks with the same signals for so long."""
        return [self.tick(view, state) for _ in range(round(seconds / TICK_SECONDS) + 1)]


def last(
    policy: AutoscalingPolicy, view: FleetSignals, state: ReplicaState, seconds: float = FULL_MINUTES
) -> ScalingDecision:
    """The decision after the same signals for so long."""
    return Ticks(policy).run(view, state, seconds)[-1]


def totals(router: str, *, uptime_seconds: float = 1e6, replicas: Sequence[ReplicaTotals] = (), **model: Any):
    """A router's answer about the model `m`."""
    return FleetTotals(
        router=router,
        uptime_seconds=uptime_seconds,
        models={"m": ModelTotals(**model)},
        replicas=tuple(replicas),
    )


@dataclass
class Merges:
    """Calls of `merged` for the model `m`, one after the other."""

    ready_uids: tuple[str, ...] = ("pod-0",)
    routers: int = 1
    history: SignalHistory = field(default_factory=SignalHistory)

    def at(self, now_seconds: float, *answers: FleetTotals, age_seconds: float = 0.0) -> FleetSignals:
        """The signals of these answers."""
        readings = [Reading(answer, age_seconds) for answer in answers]
        self.history, view = merged(
            readings,
            newest_reports(readings),
            self.history,
            names=("m", "models/m"),
            ready_uids=self.ready_uids,
            routers=self.routers,
            now_seconds=now_seconds,
        )
        return view
