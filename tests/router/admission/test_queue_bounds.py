"""Bounds on what is in use, against plain sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.admission.queue_bounds import (
    DEFAULT_WAKING,
    MIB,
    NOTHING,
    Amount,
    BoundedUsage,
    Exceeded,
)
from warmfleet_router.settings import parse_settings

BOUND = Amount(requests=100, buffered_bytes=10_000, tokens=50_000)
AMOUNTS = st.builds(Amount, st.just(1), st.integers(0, 4000), st.integers(0, 20_000))


@given(st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS, st.booleans()), max_size=80))
def test_no_bound_is_ever_passed_and_all_comes_back(steps: list[tuple[str, Amount, bool]]) -> None:
    usage = BoundedUsage(BOUND)
    held: list[tuple[str, Amount]] = []
    for tenant, amount, gives_back in steps:
        if gives_back and held:
            usage.give_back(*held.pop())
        elif usage.exceeded(tenant, amount, alone=False) is None:
            usage.take(tenant, amount)
            held.append((tenant, amount))
        assert usage.total.within(BOUND)
        assert usage.total == sum((amount for _, amount in held), NOTHING)
    while held:
        usage.give_back(*held.pop())
    assert usage.total == NOTHING
    assert usage.held("a") == NOTHING


def test_a_flooder_gets_half_and_leaves_room_for_the_next() -> None:
    usage, one = BoundedUsage(BOUND), Amount(requests=1)
    for _ in range(200):
        if usage.exceeded("flooder", one, alone=False) is None:
            usage.take("flooder", one)
    second = 0
    while usage.exceeded("second", one, alone=False) is None:
        usage.take("second", one)
        second += 1

    assert usage.held("flooder").requests == 50
    assert second == 25
    assert usage.exceeded("flooder", one, alone=False) is Exceeded.TENANT
    assert usage.exceeded("third", one, alone=False) is None


def test_a_tenant_without_others_may_have_everything() -> None:
    usage, one = BoundedUsage(BOUND), Amount(requests=1, tokens=500)
    for _ in range(100):
        assert usage.exceeded("anonymous", one, alone=True) is None
        usage.take("anonymous", one)

    assert usage.exceeded("anonymous", one, alone=True) is Exceeded.WHOLE


def test_each_part_is_bounded_by_itself() -> None:
    usage = BoundedUsage(BOUND)

    assert usage.exceeded("a", Amount(buffered_bytes=10_001), alone=True) is Exceeded.WHOLE
    assert usage.exceeded("a", Amount(tokens=50_001), alone=True) is Exceeded.WHOLE
    assert usage.exceeded("a", Amount(buffered_bytes=10_000, tokens=50_000), alone=True) is None


def test_what_is_held_for_sleeping_models_is_bounded_by_flags(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--max-waking", "1", "--max-waking-mib", "2", "--max-waking-tokens", "3"]
    assert parse_settings(flags, {}).admission.max_waking == Amount(1, 2 * MIB, 3)
    assert parse_settings([], {}).admission.max_waking == DEFAULT_WAKING
    for flag in (*flags[::2], "--max-connections", "--ring-size"):
        for wrong in ("0", "-1", "many"):
            with pytest.raises(SystemExit):
                parse_settings([flag, wrong], {})
            assert f"{flag}: expected more than 0, got {wrong}" in capsys.readouterr().err
