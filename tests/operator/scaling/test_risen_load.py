"""A load that rises, stays and falls: what was asked for is kept while it lasts, and goes with it."""

from dataclasses import dataclass, field
from typing import Final

import pytest
from msgspec.structs import replace

from warmfleet_operator.scaling import outgrown
from warmfleet_operator.scaling.chance import Means
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import POLICY, PREFILL_RATE, Ticks, fleet, signals

START_SECONDS: Final = 120.0
WINDOW_SECONDS: Final = POLICY.down_stabilization_seconds
REQUEST_TOKENS: Final = 1000
STEP_SECONDS: Final = 2.0


@dataclass
class Fleet:
    """Computes prompts of 1,000 tokens at a load that is set, in replicas; pods take two minutes."""

    replicas: int = 2
    ticks: Ticks = field(default_factory=lambda: Ticks(POLICY))
    _ready_at: list[float] = field(default_factory=list)

    def run(self, load: float, seconds: float) -> list[int]:
        """Ticks at this load; the numbers of replicas after each."""
        numbers = []
        prompt_tokens = round(30 * load * PREFILL_RATE)
        traffic = Traffic(seconds=30.0, prompt_tokens=prompt_tokens, requests=prompt_tokens // REQUEST_TOKENS)
        for _ in range(round(seconds / STEP_SECONDS)):
            now = self.ticks.now_seconds
            self._ready_at = [at for at in self._ready_at if at > now]
            pending = len(self._ready_at)
            state = ReplicaState(self.replicas, ready=self.replicas - pending, pending=pending)
            added = (
                self.ticks.tick(signals(fleet(state.ready), traffic=traffic), state).to_replicas
                - self.replicas
            )
            self._ready_at += [now + START_SECONDS] * max(0, added)
            self.replicas += added
            numbers.append(self.replicas)
        return numbers


def test_replicas_for_a_load_that_rose_are_kept_while_it_lasts_and_go_with_it():
    grown = Fleet()
    before = grown.run(1.2, 1800)
    risen = grown.run(3.2, 2400)
    fallen = grown.run(1.2, 3 * WINDOW_SECONDS)

    assert set(before) == {2}
    assert (risen[-1], risen[300:]) == (4, [4] * len(risen[300:]))
    # One at a time, the first a window of stabilization after the mean has left the risen load: not an hour.
    assert fallen[-1] == 2


def test_replicas_that_a_rise_asked_for_too_much_of_go_when_it_has_settled():
    """Its first minutes ask for more than what comes after them, as a queue is computed, too."""
    grown = Fleet()
    grown.run(1.2, 1800)
    grown.run(5.5, 300)
    most = grown.replicas
    settled = grown.run(3.2, 3600)

    assert most == 7
    # Four would be loaded to 80 %: enough where there are four, and too much for a shrink to leave.
    assert settled[-1] == min(settled) == 5


def test_a_replica_whose_shrink_had_to_be_undone_is_kept_between_bursts():
    grown = Fleet()
    grown.run(1.2, 1800)
    first = grown.run(3.2, 600)[-1]
    between = grown.run(1.2, 1200)[-1]
    second = grown.run(3.2, 600)[-1]
    afterwards = grown.run(1.2, 6000)
    long_afterwards = grown.run(1.2, 2 * 3600)

    assert (first, between, second) == (4, 2, 4)
    assert afterwards[-1] == 3
    assert long_afterwards[-1] == 2


@pytest.mark.parametrize(("load_permille", "needed"), [(1200, 4), (4800, 7)])
def test_of_a_growth_that_undoes_a_shrink_the_calm_load_keeps_what_was_there_before(load_permille, needed):
    """What a larger burst needs beyond that shows nothing of the calm between bursts."""
    calm = Means(
        load_permille=1200, tokens=0, sequences=10, requests=300, requests_per_second=10, seconds=200
    )
    burst = Means(load_permille=5000, tokens=0, sequences=40, requests=1300)
    memory = ScalingMemory(
        means=calm, decreased_seconds=50.0, undone_seconds=50.0, hold_factor=2, shrunk_from=4
    )
    memory = outgrown.noticed(POLICY, memory, burst, 7, now_seconds=100.0)
    later = replace(calm, load_permille=load_permille)

    asks = outgrown.asks(POLICY, ScalingMemory(means=later, outgrown=memory.outgrown), 200.0)

    assert asks.need == needed


@pytest.mark.parametrize(("load_permille", "needed"), [(2500, 5), (2000, 0)])
def test_the_load_that_growth_is_remembered_for_is_the_risen_one(load_permille, needed):
    before = Means(
        load_permille=1200, tokens=0, sequences=10, requests=300, requests_per_second=10, seconds=200
    )
    now = Means(load_permille=2600, tokens=0, sequences=10, requests=700)
    memory = outgrown.noticed(POLICY, ScalingMemory(means=before), now, 5, now_seconds=100.0)
    later = Means(
        load_permille=load_permille, tokens=0, sequences=10, requests=600, requests_per_second=20, seconds=200
    )

    asks = outgrown.asks(POLICY, ScalingMemory(means=later, outgrown=memory.outgrown), 200.0)

    assert asks.need == needed


def test_growth_at_a_load_that_is_not_known_yet_is_not_remembered():
    """Requests come before any replica has measured what it computes: no load could end the hold."""
    ticks = Ticks(POLICY)
    unmeasured = {"prefill_tokens_per_second": 0.0, "decode_tokens_per_second": 0.0}
    flood = signals(fleet(1, running_sequences=64, waiting_sequences=64, **unmeasured))

    decisions = ticks.run(flood, ReplicaState(spec_replicas=1, ready=1), 20)

    assert decisions[-1].to_replicas > 1
    assert ticks.memory.outgrown == ()


def test_growth_by_the_first_requests_of_a_fleet_is_not_remembered():
    """Their mean is over a dozen: chance explains any lower one, so that no load could end the hold."""
    ticks = Ticks(POLICY)
    traffic = Traffic(seconds=30.0, prompt_tokens=12_000, requests=12)
    few = signals(fleet(1, running_sequences=4, waiting_sequences=8, seats=4), traffic=traffic)

    decisions = ticks.run(few, ReplicaState(spec_replicas=1, ready=1), 20)

    assert decisions[-1].to_replicas > 1
    assert ticks.memory.means is not None
    assert ticks.memory.outgrown == ()
