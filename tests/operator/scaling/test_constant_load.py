"""A load that is constant but for chance: nothing that was decided is taken back."""

import math
import random
from collections.abc import Iterator

import pytest

from warmfleet_operator.scaling import outgrown
from warmfleet_operator.scaling.chance import Means
from warmfleet_operator.scaling.decision import ReplicaState, ScalingReason
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.signals import FleetSignals, Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    signals,
)

TICK_SECONDS = 30.0
DAY_TICKS = 2880
START_SECONDS = 120.0


class PoissonLoad:
    """Requests that arrive independently at a constant rate; lengths vary as much as their mean."""

    def __init__(self, seed: int, per_second: float, tokens: float, seconds: float) -> None:
        self._draw = random.Random(seed)
        self._per_second, self._tokens, self._seconds = per_second, tokens, seconds
        self._live: list[tuple[float, float]] = []
        self._arrivals = self._requests()
        self._next = next(self._arrivals)

    def until(self, now: float, replicas: int) -> FleetSignals:
        """What the fleet shows: the requests of this tick, and those that still run."""
        prompts = []
        while self._next[0] < now:
            arrival, tokens, ends = self._next
            prompts.append(tokens)
            self._live.append((arrival + ends, tokens))
            self._next = next(self._arrivals)
        self._live = [one for one in self._live if one[0] > now]
        return signals(
            fleet(
                replicas,
                pinned_tokens=min(round(sum(tokens for _, tokens in self._live) / replicas), SUPPLY_TOKENS),
                running_sequences=math.ceil(len(self._live) / replicas),
            ),
            traffic=Traffic(seconds=TICK_SECONDS, prompt_tokens=round(sum(prompts)), requests=len(prompts)),
        )

    def _requests(self) -> Iterator[tuple[float, float, float]]:
        now = 0.0
        while True:
            now += self._draw.expovariate(self._per_second)
            yield now, self._length(self._tokens), self._length(self._seconds)

    def _length(self, mean: float) -> float:
        """Lognormal, with a standard deviation of its mean."""
        sigma = math.sqrt(math.log(2))
        return mean * min(16.0, math.exp(self._draw.gauss(-(sigma**2) / 2, sigma)))


def changes_of_a_day(load: PoissonLoad, replicas: int) -> list[int]:
    """The differences of every change."""
    ticks, changes, ready_at = Ticks(POLICY), list[int](), list[float]()
    for tick in range(1, DAY_TICKS + 1):
        now = ticks.now_seconds = tick * TICK_SECONDS
        ready_at = [at for at in ready_at if at > now]
        ready = replicas - len(ready_at)
        state = ReplicaState(spec_replicas=replicas, ready=ready, pending=len(ready_at))
        added = ticks.tick(load.until(now, ready), state).to_replicas - replicas
        if added:
            changes.append(added)
            replicas += added
            ready_at += [now + START_SECONDS] * max(0, added)
    return changes


@pytest.mark.parametrize(
    ("per_second", "tokens", "seconds"),
    [(0.05, 20_000, 120), (0.2, 6_600, 70), (0.6, 30_000, 20)],
    ids=["few requests", "long answers", "long prompts"],
)
@pytest.mark.parametrize("replicas", [1, 6])
def test_a_day_of_constant_load_reverses_no_decision(per_second, tokens, seconds, replicas):
    changes = changes_of_a_day(PoissonLoad(1, per_second, tokens, seconds), replicas)

    assert all(change > 0 for change in changes) or all(change < 0 for change in changes)
    assert len(changes) < 8


def served(pinned_percent: int, requests: int) -> FleetSignals:
    """Four replicas with many seats whose memory is held to this percent, by so many sequences in all."""
    pinned = SUPPLY_TOKENS * pinned_percent // 100
    prompts = round(0.5 * 30 * PREFILL_RATE)
    return signals(
        fleet(4, pinned_tokens=pinned, running_sequences=requests // 4, seats=10_000),
        traffic=Traffic(seconds=30.0, prompt_tokens=prompts, requests=requests),
    )


def test_a_moment_that_chance_explains_adds_nothing_and_a_mean_does():
    """Of 16 sequences a demand above the target by a tenth is chance; of 4,000 it is not."""
    added = {}
    for requests in (16, 4000):
        ticks = Ticks(POLICY)
        ticks.run(served(60, requests), at_rest(4), 600)
        moment = ticks.run(served(95, requests), at_rest(4), 20)[-1]
        minutes = ticks.run(served(95, requests), at_rest(4), 1200)[-1]
        added[requests] = (moment.to_replicas - 4, minutes.to_replicas - 4)

    assert added == {16: (0, 1), 4000: (1, 1)}


def test_many_times_the_load_adds_replicas_at_once_however_few_the_requests():
    ticks = Ticks(POLICY)
    ticks.run(served(20, 16), at_rest(4), 600)
    flood = signals(
        fleet(4, pinned_tokens=SUPPLY_TOKENS, running_sequences=12, waiting_sequences=12),
        queued_tokens=900_000,
        traffic=Traffic(seconds=30.0, prompt_tokens=900_000, requests=96),
    )

    decision = ticks.tick(flood, at_rest(4))

    assert decision.to_replicas == 8
    assert decision.reason is ScalingReason.DEMAND_ABOVE_SUPPLY


def test_a_fleet_that_was_too_small_is_not_returned_to_while_the_load_lasts():
    memory = ScalingMemory(means=Means(load_permille=2000, tokens=9000, sequences=10))
    memory = outgrown.noticed(POLICY, memory, None, 5, now_seconds=100.0)
    lower = Means(load_permille=1999, tokens=9000, sequences=10)

    assert outgrown.asks(POLICY, memory, 200.0).need == 5
    assert outgrown.asks(POLICY, memory, 200.0).growth == 0
    assert outgrown.asks(POLICY, ScalingMemory(means=lower, outgrown=memory.outgrown), 200.0).need == 0
    assert outgrown.asks(POLICY, memory, 100.0 + 3600).need == 0


def test_a_growth_of_few_requests_is_not_kept_for_a_fleet_without_any() -> None:
    few = Means(load_permille=900, tokens=1000, sequences=1, requests=3, seconds=200)
    memory = outgrown.noticed(
        POLICY, ScalingMemory(means=few, busy_seconds=100.0), None, 5, now_seconds=100.0
    )

    assert outgrown.asks(POLICY, memory, 399.0).need == 5
    assert outgrown.asks(POLICY, memory, 400.0).need == 0


def test_each_shrink_that_growth_undoes_doubles_the_time_until_the_next_up_to_a_day():
    memory, now, holds = ScalingMemory(), 0.0, []
    for undone in range(7):
        memory = outgrown.noticed(POLICY, memory, None, 3, now)
        memory = outgrown.noticed(POLICY, memory, None, 4, now + 2)  # the same growth goes on: counted once
        holds.append(outgrown.hold_seconds(POLICY, memory) / 3600)
        now += outgrown.hold_seconds(POLICY, memory) + 60
        memory = ScalingMemory(
            outgrown=memory.outgrown,
            hold_factor=memory.hold_factor,
            undone_seconds=memory.undone_seconds,
            decreased_seconds=now,
        )
        now += 600
        assert len(memory.outgrown) <= 2, undone

    assert holds == [1, 2, 4, 8, 16, 24, 24]
    assert outgrown.noticed(POLICY, memory, None, 3, now + 90_000).hold_factor == 1


def test_what_is_remembered_of_growths_is_bounded():
    memory = ScalingMemory()
    for number in range(100):
        load = Means(load_permille=100 * number, tokens=0, sequences=0)
        memory = outgrown.noticed(
            POLICY, ScalingMemory(means=load, outgrown=memory.outgrown), None, number, float(number)
        )

    assert len(memory.outgrown) == outgrown.MAX_OUTGROWN
    assert outgrown.asks(POLICY, memory, 100.0).need == 99
