"""A load that fell: few and slow requests keep no replica for what chance might bring of them, for long."""

from dataclasses import dataclass, field
from typing import Final

import pytest

from warmfleet_contracts.cache.fleet_totals import LATENCY_BOUNDS_MS, LatencyHistogram
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling import experience
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_operator.scaling.experience import Span
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SEATS,
    TICK_SECONDS,
    Merges,
    Ticks,
    at_rest,
    fleet,
    replica,
    signals,
    totals,
)


def with_windows(seconds: int) -> AutoscalingPolicy:
    """Of a shrink."""
    spec = {
        "maxReplicas": 3,
        "scaleUp": {"stabilizationSeconds": 1, "panicSeconds": 1},
        "scaleDown": {"stabilizationSeconds": seconds, "periodSeconds": 1},
    }
    return AutoscalingPolicy.of(AutoscalingSpec.model_validate(spec))


SHORT_WINDOWS: Final = with_windows(4)
ANSWER_TOKENS: Final = 200
PROMPT_TOKENS: Final = 30
STEP_SECONDS: Final = 1.0
START_SECONDS: Final = 15.0


@dataclass
class ClosedLoop:
    """Clients that each send a request when the one before is answered."""

    answer_seconds: float
    """Of one request, alone or beside others."""
    seats: int = 2
    """Of a worker."""
    replicas: int = 1
    ticks: Ticks = field(default_factory=lambda: Ticks(SHORT_WINDOWS))
    numbers: list[int] = field(default_factory=list)
    _merges: Merges = field(default_factory=Merges)
    _left: list[float] = field(default_factory=list)
    _ready_at: list[float] = field(default_factory=list)
    _answered: int = 0
    _generated: float = 0.0

    def run(self, clients: int, seconds: float) -> int:
        """Ticks with so many clients; the number of replicas after them."""
        for _ in range(round(seconds / STEP_SECONDS)):
            self._step(clients)
            self._tick()
        return self.replicas

    def _step(self, clients: int) -> None:
        """The first ones of those that wait have the seats."""
        self._left += [ANSWER_TOKENS] * (clients - len(self._left))
        seats = self.seats * self._ready
        moved = min(seats, len(self._left))
        each = ANSWER_TOKENS * STEP_SECONDS / self.answer_seconds
        self._left[:moved] = [left - each for left in self._left[:moved]]
        self._generated += moved * each
        self._answered += sum(left <= 0 for left in self._left)
        self._left = [left for left in self._left if left > 0]

    @property
    def _ready(self) -> int:
        return self.replicas - sum(at > self.ticks.now_seconds for at in self._ready_at)

    def _tick(self) -> None:
        now, ready = self.ticks.now_seconds, self._ready
        running = min(len(self._left), self.seats * ready)
        reports = [
            replica(
                f"pod-{number}",
                seats=self.seats,
                running_sequences=min(self.seats, max(0, running - self.seats * number)),
                waiting_sequences=len(self._left) - running if number == 0 else 0,
                pinned_tokens=128 * min(self.seats, max(0, running - self.seats * number)),
                prefill_tokens_per_second=40 * ANSWER_TOKENS / self.answer_seconds,
                decode_tokens_per_second=self.seats * ANSWER_TOKENS / self.answer_seconds,
            )
            for number in range(ready)
        ]
        self._merges.ready_uids = tuple(report.uid for report in reports)
        gaps = (0,) * (len(LATENCY_BOUNDS_MS) // 2) + (round(self._generated),)
        answer = totals(
            "a",
            replicas=reports,
            prompt_tokens=PROMPT_TOKENS * self._answered,
            first_token=LatencyHistogram((self._answered,)),
            inter_token=LatencyHistogram(gaps),
        )
        view = self._merges.at(now, answer)
        state = ReplicaState(self.replicas, ready=ready, pending=self.replicas - ready)
        decision = self.ticks.tick(view, state)
        self.ticks.now_seconds = now + STEP_SECONDS
        added = decision.to_replicas - self.replicas
        self._ready_at = [at for at in self._ready_at if at > now] + [now + START_SECONDS] * max(0, added)
        self.replicas = decision.to_replicas
        self.numbers.append(self.replicas)


@pytest.mark.parametrize("answer_seconds", [0.5, 2.0, 10.0, 20.0])
def test_one_client_after_five_keeps_no_second_worker_however_slow_the_machine(answer_seconds: float) -> None:
    """A window is four seconds; half a minute of the time are the tokens of the last half minute."""
    closed = ClosedLoop(answer_seconds)
    risen = closed.run(clients=5, seconds=60)

    fallen = closed.run(clients=1, seconds=66)

    assert risen >= 2
    assert fallen == 1


def test_the_mean_of_a_load_that_has_fallen_is_no_higher_than_its_last_two_windows() -> None:
    """Of windows of half a minute, and one for which the smaller fleet has to be enough."""
    closed = ClosedLoop(0.5, seats=4, ticks=Ticks(with_windows(30)))
    risen = closed.run(clients=12, seconds=90)

    fallen = closed.run(clients=1, seconds=100)

    assert (risen, fallen) == (3, 2)


def test_a_load_that_does_not_vary_loses_what_chance_kept_after_half_an_hour_of_default_windows() -> None:
    """Two sequences of a minute each: chance might bring three or four of them, and has not."""
    ticks = Ticks(POLICY)
    two = signals(fleet(2, seats=4, running_sequences=1), traffic=Traffic(seconds=30.0, requests=1))
    spanned = experience.SPANS * POLICY.down_stabilization_seconds

    numbers = [decision.to_replicas for decision in ticks.run(two, at_rest(2), spanned + 60)]
    first = numbers.index(1) * TICK_SECONDS

    assert spanned - POLICY.down_stabilization_seconds <= first <= spanned + TICK_SECONDS


def varying(lowest: int, highest: int) -> int:
    """Replicas that are left of two with 64 seats after two minutes between so many sequences."""
    ticks = Ticks(SHORT_WINDOWS)
    for moment in range(60):
        running = lowest if moment % 6 < 3 else highest
        view = signals(fleet(2, running_sequences=running // 2), traffic=Traffic(seconds=30.0, requests=1))
        replicas = ticks.tick(view, at_rest(2)).to_replicas
    return replicas


def test_what_a_load_varies_by_is_kept_free() -> None:
    """Of 64 seats 85 % are 54: as much as 40 sequences that vary by 28, and one replica takes no more."""
    assert SEATS == 64
    assert (varying(40, 40), varying(14, 40), varying(10, 40)) == (1, 1, 2)


SPANS: Final = tuple(
    Span(since_seconds=10.0 * at, until_seconds=10.0 * at + 9, highest=40, lowest=30) for at in range(6)
)


def test_the_highest_of_a_day_is_as_far_above_what_was_seen_as_that_is_above_its_middle() -> None:
    assert experience.highest_percent(SPANS) == 45.0
    assert experience.highest_percent(SPANS[1:]) is None


def moment(percent: int, now_seconds: float, window_seconds: float = 10.0) -> tuple[Span, ...]:
    return experience.watched(SPANS, percent, now_seconds, window_seconds=window_seconds, gap_seconds=60.0)


def test_a_window_that_is_over_takes_the_place_of_the_oldest() -> None:
    within, after = moment(70, 59.5), moment(70, 60.0)

    assert [span.highest for span in within] == [40, 40, 40, 40, 40, 70]
    assert within[-1].lowest == 30
    assert after[:-1] == SPANS[1:]
    assert (after[-1].highest, after[-1].lowest) == (70, 70)
    assert len(moment(70, 59.5, window_seconds=0.0)) == experience.SPANS


def test_after_a_time_without_a_moment_the_load_has_to_be_watched_anew() -> None:
    assert len(moment(70, 119.0)) == experience.SPANS
    assert len(moment(70, 120.0)) == 1


def test_moments_without_all_signals_are_not_watched() -> None:
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(2, running_sequences=8)), at_rest(2), 20)
    watched = ticks.memory.spans

    ticks.run(signals(fleet(1, running_sequences=1), missing_replicas=1), at_rest(2), 20)
    ticks.run(signals((), routers=0), at_rest(2), 20)

    assert watched
    assert ticks.memory.spans == watched
