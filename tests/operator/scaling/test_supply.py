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


def test_replicas_that_compute_all_they_can_teach_their_speed():
    busy = fleet(2, queued_uncached_tokens=round(3 * PREFILL_RATE))
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 2 * 0.6 * PREFILL_RATE))

    decision = Ticks(POLICY).run(signals(busy, traffic=traffic), at_rest(2), 60)[-1]

    assert decision.inputs.supply_compute_permille == 600


HELD = {"queued_requests": 8, "queued_tokens": 8 * 5000}
REFUSED = {"refused_requests": 40, "refused_tokens": 60_000}


def taught_permille(refused, held, **replica):
    """What a minute teaches in which two replicas compute 0.6 of what they have measured."""
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 2 * 0.6 * PREFILL_RATE), **refused)
    view = signals(fleet(2, pinned_tokens=60_000, **replica), traffic=traffic, **held)
    return Ticks(POLICY).run(view, at_rest(2), 60)[-1].inputs.supply_compute_permille


def test_requests_that_routers_hold_back_and_refuse_teach_the_speed_of_replicas_with_room_for_them():
    assert taught_permille(REFUSED, HELD) == 600


@pytest.mark.parametrize(
    ("refused", "held", "replica"),
    [
        ({}, HELD, {}),
        (REFUSED, {}, {}),
        (REFUSED, {"queued_requests": 8, "queued_tokens": 8 * 36_000}, {}),
        (REFUSED, HELD, {"running_sequences": 64}),
    ],
    ids=["none is refused", "none waits", "memory for none", "seats for none"],
)
def test_what_waits_at_routers_for_anything_else_teaches_nothing_of_speed(refused, held, replica):
    assert taught_permille(refused, held, **replica) == 1000
