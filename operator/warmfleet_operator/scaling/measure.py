"""One tick: what is remembered next, what each signal asks for, and the whole numbers that decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import LatencyHistogram
from warmfleet_operator.scaling import experience, late_load, latency_guard, outgrown, regret, supply
from warmfleet_operator.scaling.chance import Level, Means, lasting
from warmfleet_operator.scaling.decision import DecisionInputs, ReplicaState
from warmfleet_operator.scaling.demand import (
    Ask,
    Demand,
    asked,
    backlog_permille,
    demand_of,
)
from warmfleet_operator.scaling.entries import with_highest, with_lowest
from warmfleet_operator.scaling.latency_guard import LatencyView
from warmfleet_operator.scaling.limits import growth_limit
from warmfleet_operator.scaling.memory import LATE_TICKS, ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy, LatencyGoal
from warmfleet_operator.scaling.shrink import victim_of
from warmfleet_operator.scaling.signals import LATENCY_SECONDS, TRAFFIC_SECONDS, FleetSignals, Traffic
from warmfleet_operator.scaling.supply import Supply, supply_of
from warmfleet_operator.scaling.ticks import idle_seconds, ticked

LATE_TO_ACT: Final = 3
"""Of the last `LATE_TICKS` ticks: a percentile is above its target often enough."""
_PANIC_NOW: Final = 1
_PANIC_BEFORE: Final = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """A tick before the choice."""

    memory: ScalingMemory
    now: Means | None
    """The demand of this tick alone; None while its load is unknown."""
    inputs: DecisionInputs
    asks: Mapping[str, Ask]
    victim: str | None


@dataclass(frozen=True, slots=True)
class _Tick:
    """What the rules read."""

    policy: AutoscalingPolicy
    signals: FleetSignals
    state: ReplicaState
    now_seconds: float
    demand: Demand
    supply: Supply
    first: LatencyView
    between: LatencyView

    @property
    def coming(self) -> int:
        """Replicas that are ready or will be."""
        return max(self.state.ready, self.state.spec_replicas - self.state.unschedulable)

    @property
    def load_permille(self) -> int:
        """Arrivals and backlog, in 1/1000 of one replica's time."""
        backlog = backlog_permille(self.demand, self.policy.backlog_seconds)
        return max(0, self.demand.compute_permille) + backlog

    @property
    def waits(self) -> bool:
        """Whether a request waits, or was refused: for memory or seats also where little is computed."""
        signals = self.signals
        waiting = signals.waiting_requests + sum(replica.waiting_sequences for replica in signals.replicas)
        return waiting + signals.traffic.refused_requests > 0

    @property
    def blind(self) -> bool:
        """Whether nothing is known that could move the number."""
        return not self.signals.routers or (self.state.ready > 0 and not self.signals.replicas)

    @property
    def percent(self) -> int:
        """The highest of the demands, of what one replica takes."""
        known = [(demanded, supplied) for demanded, supplied in self.pairs if supplied > 0]
        return max((-(-100 * demanded // supplied) for demanded, supplied in known), default=0)

    def since(self, known_seconds: float | None, *, holds: bool) -> float | None:
        """Since when something holds that held since then, if it did; None where it does not hold."""
        if not holds:
            return None
        return self.now_seconds if known_seconds is None else known_seconds

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Demand, and what one replica takes of it."""
        return (
            (self.demand.tokens, self.supply.tokens),
            (self.demand.sequences, self.supply.sequences),
            (self.load_permille, self.supply.compute_permille),
        )


def measure(
    policy: AutoscalingPolicy,
    memory: ScalingMemory,
    signals: FleetSignals,
    state: ReplicaState,
    now_seconds: float,
) -> Measured:
    """Everything that one tick shows."""
    elapsed = max(0.0, now_seconds - memory.last_seconds) if memory.last_seconds is not None else 0.0
    memory = ticked(policy, memory, signals, state, now_seconds)
    demand = demand_of(signals, state.ready)
    now = _now(demand, signals.traffic)
    memory = replace(memory, means=_means(memory.means, now, elapsed))
    memory = supply.learnt(memory, signals, demand, now_seconds)
    memory = regret.noticed(
        policy, memory, signals, demand, state, now_seconds=now_seconds, elapsed_seconds=elapsed
    )
    each = supply_of(memory)
    load = demand.compute_permille
    fleet_load = -1 if load < 0 else round(1000 * load / each.compute_permille)
    # Per answer, as clients see it. A router of an earlier release knows single gaps alone.
    between = signals.mean_inter_token if signals.mean_inter_token.counts else signals.inter_token
    tick = _Tick(
        policy,
        signals,
        state,
        now_seconds,
        demand,
        each,
        first=LatencyView(
            percentile_ms=_percentile_ms(signals.first_token, policy.first_token),
            certain_ms=_certain_ms(signals.first_token, policy.first_token),
            floor_ms=memory.first_token_floor_ms or 0.0,
            load_permille=fleet_load,
            ready=state.ready,
            backlog_ms=_backlog_ms(demand, each),
        ),
        between=LatencyView(
            percentile_ms=_percentile_ms(between, policy.between_tokens),
            certain_ms=_certain_ms(between, policy.between_tokens),
            floor_ms=memory.inter_token_floor_ms or 0.0,
            load_permille=fleet_load,
            ready=state.ready,
            queues=False,
        ),
    )
    memory = _with_late_load(tick, _with_latencies(tick, _with_rise(tick, _watched(tick, memory))))
    asks = _asks(tick, memory)
    memory, panic = _with_windows(tick, memory, asks)
    victim = victim_of(policy, signals, demand.prefill_rate)
    inputs = _inputs(tick, memory, asks, panic, victim.loss_ms if victim else 0)
    return Measured(memory, now, inputs, asks, victim.uid if victim else None)


def _percentile_ms(histogram: LatencyHistogram, goal: LatencyGoal | None) -> float:
    """0 without any request, or without a goal."""
    return (histogram.percentile_ms(goal.percentile / 100) or 0.0) if goal is not None else 0.0


def _certain_ms(histogram: LatencyHistogram, goal: LatencyGoal | None) -> float:
    return latency_guard.certain_ms(histogram, goal.percentile) if goal is not None else 0.0


def _backlog_ms(demand: Demand, each: Supply) -> float:
    if demand.prefill_rate <= 0:
        return 0.0
    return 1000 * demand.backlog_tokens / (demand.prefill_rate * each.compute_permille / 1000)


def _with_latencies(tick: _Tick, memory: ScalingMemory) -> ScalingMemory:
    late = tick.coming > 0 and any(
        goal is not None and latency_guard.is_late(view, goal.target_milliseconds)
        for goal, view in ((tick.policy.first_token, tick.first), (tick.policy.between_tokens, tick.between))
    )
    since = tick.since(memory.low_since_seconds, holds=tick.first.low and not tick.waits)
    # The requests of a percentile are older than the load: they may have met a higher one.
    low = since is not None and tick.now_seconds - since >= LATENCY_SECONDS
    return replace(
        memory,
        late=(*memory.late, late)[-LATE_TICKS:],
        low_since_seconds=since,
        first_token_floor_ms=latency_guard.floor_of(memory.first_token_floor_ms, tick.first, low=low),
        inter_token_floor_ms=latency_guard.floor_of(memory.inter_token_floor_ms, tick.between, low=low),
    )


def _is_late(memory: ScalingMemory) -> bool:
    """Whether a target was missed often enough to act."""
    return sum(memory.late) >= LATE_TO_ACT


def _late_permille(tick: _Tick, memory: ScalingMemory) -> int:
    return late_load.share_permille(tick.policy, memory, tick.now_seconds)


def _with_late_load(tick: _Tick, memory: ScalingMemory) -> ScalingMemory:
    """The memory with the load of this tick, if a latency target is missed for it."""
    memory, load_permille = late_load.aimed(tick.policy, memory), tick.first.load_permille
    if load_permille < 0 or not tick.signals.complete or not _is_late(memory):
        return memory
    return late_load.noticed(memory, load_permille, tick.now_seconds)


def _asks(tick: _Tick, memory: ScalingMemory) -> dict[str, Ask]:
    """What each signal asks for."""
    policy, state, signals = tick.policy, tick.state, tick.signals
    asks = {
        **_demand_asks(tick, memory),
        "firstToken": Ask(),
        "betweenTokens": Ask(),
        "earlierGrowth": outgrown.asks(policy, memory, tick.now_seconds),
        "capacityMisses": regret.asks(policy, memory, state.spec_replicas, tick.now_seconds),
        # Any request asks for one replica; the last one goes by the time of idleness alone.
        "requests": Ask(int(signals.waiting_requests > 0), 1),
    }
    late = _is_late(memory)
    load = tick.load_permille if tick.demand.compute_permille >= 0 else -1
    most = latency_guard.at_low_load(load, tick.supply.compute_permille, tick.demand.sequences)
    for name, goal, view in (
        ("firstToken", policy.first_token, tick.first),
        ("betweenTokens", policy.between_tokens, tick.between),
    ):
        if goal is not None and state.ready:
            margin = policy.latency_margin_percent
            asks[name] = latency_guard.asks(
                view, goal.target_milliseconds, margin, tick.coming, late=late, most=most
            )
    return asks


def _with_rise(tick: _Tick, memory: ScalingMemory) -> ScalingMemory:
    """The memory with the times since when a demand has been above its mean: at every tick, and with pauses.

    A rise ends when `TRAFFIC_SECONDS` have passed without one: until then part of what is measured is of it.
    """
    above = _is_above_mean(tick, memory.means)
    last = tick.now_seconds if above else memory.last_risen_seconds
    lasts = last is not None and tick.now_seconds - last < TRAFFIC_SECONDS
    return replace(
        memory,
        last_risen_seconds=last,
        risen_since_seconds=tick.since(memory.risen_since_seconds, holds=above),
        rise_began_seconds=tick.since(memory.rise_began_seconds, holds=lasts),
    )


def _rises(tick: _Tick, memory: ScalingMemory) -> bool:
    """Whether the load rises: the need of the last minutes is that of a lower one.

    Not for longer than these minutes, in which the need becomes that of the risen load: demands of which
    another one is above its mean each time would else keep every replica. Where demands are above it every
    few seconds, a rise without a pause is still one of its own.
    """
    begins = (memory.risen_since_seconds, memory.rise_began_seconds)
    longest_seconds = tick.policy.down_stabilization_seconds
    return any(since is not None and tick.now_seconds - since < longest_seconds for since in begins)


def _is_above_mean(tick: _Tick, means: Means | None) -> bool:
    """Whether a demand is above its mean by more than chance explains in one of twenty moments."""
    demand, arrivals = tick.demand, tick.signals.traffic.arrivals
    if means is None or demand.compute_permille < 0:  # unknown, and then no mean follows
        return False
    return (
        means.load_level.is_exceeded_by(demand.compute_permille, arrivals)
        or means.tokens_level.is_exceeded_by(demand.tokens, demand.sequences)
        or means.sequences_level.is_exceeded_by(demand.sequences, demand.sequences)
    )


def _now(demand: Demand, traffic: Traffic) -> Means | None:
    if demand.compute_permille < 0:
        return None
    return Means(
        load_permille=demand.compute_permille,
        tokens=demand.tokens,
        sequences=demand.sequences,
        requests=traffic.arrivals,
        requests_per_second=traffic.arrivals / traffic.seconds if traffic.seconds else 0.0,
    )


def _means(known: Means | None, now: Means | None, elapsed_seconds: float) -> Means | None:
    """The means with this tick's demand, from when its load is known."""
    if now is None or known is None:
        return now or known
    return known.followed(now, elapsed_seconds)


def _watched(tick: _Tick, memory: ScalingMemory) -> ScalingMemory:
    """The memory with this moment of demand, if all of it is known."""
    if tick.blind or not tick.signals.complete:
        return memory
    spans = experience.watched(
        memory.spans,
        tick.percent,
        tick.now_seconds,
        window_seconds=tick.policy.down_stabilization_seconds,
        gap_seconds=tick.policy.gap_seconds,
    )
    begins = spans[0].since_seconds == tick.now_seconds  # at first, and after a gap
    since = tick.now_seconds if begins else memory.watched_since_seconds
    return replace(memory, spans=spans, watched_since_seconds=since)


def _watched_seconds(tick: _Tick, memory: ScalingMemory) -> int:
    since = memory.watched_since_seconds
    return 0 if since is None else int(tick.now_seconds - since)


def _demand_asks(tick: _Tick, memory: ScalingMemory) -> dict[str, Ask]:
    """What tokens, sequences, compute and the load of an earlier miss ask for, chance excluded."""
    demand, each, requests = tick.demand, tick.supply, tick.signals.traffic.arrivals
    load = max(0, demand.compute_permille)
    backlog = backlog_permille(demand, tick.policy.backlog_seconds)
    # What a fleet wakes for is there, and no moment of a load that goes on.
    sequences = demand.sequences if tick.state.spec_replicas else 0
    mean = memory.means or Means(load_permille=load, tokens=demand.tokens, sequences=demand.sequences)
    of_tokens, of_sequences, of_load = mean.tokens_level, mean.sequences_level, mean.load_level
    # A backlog has to be computed also where chance has brought it.
    load_now = lasting(load, requests, of_load) + backlog
    tokens_now = lasting(demand.tokens, sequences, of_tokens)
    sequences_now = lasting(demand.sequences, sequences, of_sequences)
    return {
        "tokens": _ask(tick, memory, each.tokens, tokens_now, of_tokens),
        "sequences": _ask(tick, memory, each.sequences, sequences_now, of_sequences),
        "compute": _ask(tick, memory, each.compute_permille, load_now, of_load),
        "earlierLatency": late_load.asks(_late_permille(tick, memory), each.compute_permille, load_now),
    }


def _ask(tick: _Tick, memory: ScalingMemory, supplied: int, now: float, level: Level) -> Ask:
    """By the demand that counts now, and by the highest of a day, which must not ask for growth."""
    policy = tick.policy
    ask = asked(now, supplied, policy.scale_up_percent, policy.scale_down_percent)
    highest = _highest_of_day(tick, memory, supplied, level)
    day = asked(highest, supplied, policy.scale_up_percent, policy.scale_up_percent)
    return Ask(ask.growth, max(ask.need, day.need))


def _highest_of_day(tick: _Tick, memory: ScalingMemory, supplied: int, level: Level) -> float:
    """What chance predicts; where the load was watched for long enough, what was seen bounds it.

    The mean may still be that of a load which has fallen: it is no higher than the moments of late.
    """
    late = experience.late_percent(memory.spans)
    if late is not None:
        traffic, (percent, since_seconds) = tick.signals.traffic, late
        rate = traffic.arrivals / traffic.seconds if traffic.seconds else 0.0
        # At least one: of none nothing would be chance.
        level = level.bounded(percent * supplied / 100, max(1.0, rate * (tick.now_seconds - since_seconds)))
    seen = experience.highest_percent(memory.spans)
    return level.highest_of_day if seen is None else min(level.highest_of_day, seen * supplied / 100)


def _with_windows(tick: _Tick, memory: ScalingMemory, asks: Mapping[str, Ask]) -> tuple[ScalingMemory, int]:
    """The memory with this tick in its windows, and whether there is a panic."""
    policy, now = tick.policy, tick.now_seconds
    growth = max(ask.growth for ask in asks.values())
    # A replica that does not report may be full. A new one reports within moments, and then shows all.
    need_now = max(ask.need for ask in asks.values()) + tick.signals.missing_replicas
    # A need that is shorter than growth has to be asked for keeps replicas while it is there, and not longer.
    # Half a minute at most: a policy that grows late does not shrink sooner for it.
    lasting_seconds = min(policy.up_stabilization_seconds, TRAFFIC_SECONDS)
    lasting_need = with_lowest(memory.lasting_need, now, need_now, lasting_seconds)
    need = lasting_need[0][1]
    if tick.blind or tick.signals.missing_routers:
        need = max(need, tick.state.spec_replicas)  # such a router may queue anything
    panic = 0
    if not tick.blind and _panics(tick):
        panic = _PANIC_NOW
        memory = replace(memory, panic_until_seconds=now + policy.panic_seconds)
    elif memory.panic_until_seconds is not None and now < memory.panic_until_seconds:
        panic = _PANIC_BEFORE
    memory = replace(
        memory,
        growth=with_lowest(memory.growth, now, growth, policy.up_stabilization_seconds),
        lasting_need=lasting_need,
        need=with_highest(memory.need, now, need, policy.down_stabilization_seconds),
    )
    return memory, panic


def _panics(tick: _Tick) -> bool:
    ready = tick.state.ready
    return ready > 0 and any(
        supplied > 0 and 100 * demanded >= tick.policy.panic_percent * supplied * ready
        for demanded, supplied in tick.pairs
    )


def _stable_growth(tick: _Tick, memory: ScalingMemory, asks: Mapping[str, Ask], panic: int) -> int:
    """What has been asked for long enough: at once in a panic, and from zero."""
    if panic == _PANIC_NOW or tick.state.spec_replicas == 0:
        return max(ask.growth for ask in asks.values())
    if tick.now_seconds - memory.since_seconds < tick.policy.up_stabilization_seconds:
        return 0
    return memory.growth[0][1]


def _inputs(
    tick: _Tick, memory: ScalingMemory, asks: Mapping[str, Ask], panic: int, victim_loss_ms: int
) -> DecisionInputs:
    policy, state, signals = tick.policy, tick.state, tick.signals
    first, between = (
        round(latency_guard.predicted_ms(view, tick.coming)) if goal is not None else 0
        for goal, view in ((policy.first_token, tick.first), (policy.between_tokens, tick.between))
    )
    changed = memory.changed_seconds
    return DecisionInputs(
        spec_replicas=state.spec_replicas,
        ready_replicas=state.ready,
        pending_replicas=state.pending,
        unschedulable_replicas=state.unschedulable,
        stopping_replicas=state.stopping,
        rollouts=int(state.in_rollout),
        missing_replicas=signals.missing_replicas,
        missing_routers=signals.missing_routers,
        known_routers=signals.routers,
        blind=int(tick.blind),
        demand_tokens=tick.demand.tokens,
        supply_tokens=tick.supply.tokens,
        demand_sequences=tick.demand.sequences,
        supply_sequences=tick.supply.sequences,
        demand_compute_permille=tick.load_permille,
        supply_compute_permille=tick.supply.compute_permille,
        first_token_ms=first,
        inter_token_ms=between,
        hit_percent=round(100 * signals.traffic.hit_ratio),
        capacity_miss_percent=regret.miss_percent(signals),
        demand_replicas=max(asks[name].growth for name in ("tokens", "sequences", "compute")),
        misses_replicas=asks["capacityMisses"].growth,
        first_token_replicas=asks["firstToken"].growth,
        first_token_needed=asks["firstToken"].need,
        inter_token_replicas=asks["betweenTokens"].growth,
        inter_token_needed=asks["betweenTokens"].need,
        late_load_replicas=asks["earlierLatency"].growth,
        late_load_permille=_late_permille(tick, memory),
        waiting_requests=signals.waiting_requests,
        idle_seconds=idle_seconds(memory, tick.now_seconds),
        observed_seconds=int(tick.now_seconds - memory.since_seconds),
        watched_seconds=_watched_seconds(tick, memory),
        stable_need=max(memory.need[0][1], memory.lasting_need[-1][1]),
        growth_limit=growth_limit(policy, memory.growths, state.spec_replicas),
        changed_seconds=-1 if changed is None else int(tick.now_seconds - changed),
        panic=panic,
        rising=int(_rises(tick, memory)),
        stable_growth=_stable_growth(tick, memory, asks, panic),
        victim_loss_ms=victim_loss_ms,
    )
