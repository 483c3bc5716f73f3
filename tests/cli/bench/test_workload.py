import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_cli.bench.workload import (
    PrefixWorkload,
    distinct_prompts,
    ordinary_tokens,
    plan_run,
    poisson_arrivals,
)

VOCABULARY = range(10, 500)


def test_the_standard_workload_fills_0_73_of_three_workers():
    workload = PrefixWorkload()

    blocks = workload.blocks_per_worker(workers=3, block_size_tokens=16)

    assert workload.resident_tokens == 16 * (256 + 5 * 48) == 7936
    assert blocks == 226
    assert workload.resident_tokens / (3 * blocks * 16) == pytest.approx(0.73, abs=0.003)


def test_a_worker_always_has_room_for_one_request():
    workload = PrefixWorkload(groups=1, prompts_per_group=1, prefix_tokens=32, question_tokens=8)

    assert workload.blocks_per_worker(workers=9, block_size_tokens=16) == math.ceil((40 + 16) / 16)


def test_arrivals_come_at_the_given_rate_and_in_order():
    moments = poisson_arrivals(20_000, rate_per_second=4.0, seed=1)

    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert all(gap >= 0 for gap in gaps)
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.03)
    # Exponential gaps: standard deviation equals mean.
    variance = sum((gap - 0.25) ** 2 for gap in gaps) / len(gaps)
    assert math.sqrt(variance) == pytest.approx(0.25, rel=0.05)


def test_one_schedule_seed_gives_two_policies_the_same_moments_and_groups_but_other_tokens():
    plans = [
        plan_run(
            PrefixWorkload(),
            rate_per_second=2.0,
            vocabulary=VOCABULARY,
            schedule_seed=7,
            prompt_seed=prompt_seed,
        )
        for prompt_seed in (100, 101)
    ]

    first, second = ([(request.due_seconds, request.group) for request in plan] for plan in plans)
    assert first == second
    assert {request.token_ids for request in plans[0]}.isdisjoint(request.token_ids for request in plans[1])


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32))
def test_prompts_of_a_group_share_exactly_its_prefix(groups, prompts, prefix, question, seed):
    workload = PrefixWorkload(
        groups=groups, prompts_per_group=prompts, prefix_tokens=prefix, question_tokens=question
    )

    plan = plan_run(
        workload, rate_per_second=1.0, vocabulary=VOCABULARY, schedule_seed=seed, prompt_seed=seed + 9
    )

    assert len(plan) == workload.requests
    for group in range(groups):
        members = [request.token_ids for request in plan if request.group == group]
        assert len(members) == prompts
        assert all(len(member) == prefix + question for member in members)
        assert len({member[:prefix] for member in members}) == 1
    assert all(token in VOCABULARY for request in plan for token in request.token_ids)


def test_distinct_prompts_share_not_even_a_first_block():
    prompts = distinct_prompts(50, 40, VOCABULARY, seed=3)

    assert len({prompt[:16] for prompt in prompts}) == 50


def test_control_tokens_at_the_low_ids_are_never_drawn():
    assert ordinary_tokens(49_152).start == 64
    assert ordinary_tokens(100).start == 25
    assert ordinary_tokens(100).stop == 100
