"""What one replica takes: it is learnt where work waits, and only there."""

import pytest

from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    loaded,
    signals,
)

WAITING = {"pinned_tokens": 60_000, "running_sequences": 8, "waiting_sequences": 3}


def test_a_replica_whose_queue_waits_for_memory_teaches_what_it_takes():
    ticks = Ticks(POLICY)
    stuck = {**WAITING, "queued_uncached_tokens": 150_000}

    ticks.run(signals(fleet(2, **stuck)), at_rest(2), 20)
    decision = ticks.tick(loaded(2, 50), at_rest(2))

    assert decision.inputs.supply_tokens == 60_000


def test_a_request_that_waits_for_the_next_step_teaches_nothing():
    ticks = Ticks(POLICY)
    arriving = {"pinned_tokens": 900, "running_sequences": 1, "waiting_sequences": 1}

    (*_, decision) = ticks.run(signals(fleet(2, **arriving)), at_rest(2), 20)

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


def test_prompts_that_would_fit_wait_for_compute_and_teach_nothing_of_memory():
    ticks = Ticks(POLICY)
    computing = {**WAITING, "queued_uncached_tokens": 30_000}

    (*_, decision) = ticks.run(signals(fleet(2, **computing)), at_rest(2), 20)

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


@pytest.mark.parametrize("refused", [{}, {"refused_requests": 40, "refused_tokens": 60_000}])
def test_replicas_that_compute_all_they_can_teach_their_speed_and_not_what_is_refused(refused):
    busy = fleet(2, queued_uncached_tokens=round(3 * PREFILL_RATE))
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 2 * 0.6 * PREFILL_RATE), **refused)

    decision = Ticks(POLICY).run(signals(busy, traffic=traffic), at_rest(2), 60)[-1]

    assert decision.inputs.supply_compute_permille == 600
