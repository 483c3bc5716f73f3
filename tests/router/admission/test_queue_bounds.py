"""Bounds on what is held, against plain sums."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.admission.queue_bounds import NOTHING, Amount, BoundedUsage, Exceeded

BOUND = Amount(requests=100, body_bytes=10_000, tokens=50_000)
AMOUNTS = st.builds(Amount, st.just(1), st.integers(0, 4000), st.integers(0, 20_000))


@given(st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS, st.booleans()), max_size=80))
def test_no_bound_is_ever_passed_and_all_comes_back(steps: list[tuple[str, Amount, bool]]) -> None:
    hold = BoundedUsage(BOUND)
    held: list[tuple[str, Amount]] = []
    for tenant, amount, gives_back in steps:
        if gives_back and held:
            hold.give_back(*held.pop())
        elif hold.exceeded(tenant, amount, alone=False) is None:
            hold.take(tenant, amount)
            held.append((tenant, amount))
        assert hold.total.within(BOUND)
        assert hold.total == sum((amount for _, amount in held), NOTHING)
    while held:
        hold.give_back(*held.pop())
    assert hold.total == NOTHING
    assert hold.held("a") == NOTHING


def test_a_flooder_gets_half_and_leaves_room_for_the_next() -> None:
    hold, one = BoundedUsage(BOUND), Amount(requests=1)
    for _ in range(200):
        if hold.exceeded("flooder", one, alone=False) is None:
            hold.take("flooder", one)
    second = 0
    while hold.exceeded("second", one, alone=False) is None:
        hold.take("second", one)
        second += 1

    assert hold.held("flooder").requests == 50
    assert second == 25
    assert hold.exceeded("flooder", one, alone=False) is Exceeded.TENANT
    assert hold.exceeded("third", one, alone=False) is None


def test_whoever_is_alone_may_have_everything() -> None:
    hold, one = BoundedUsage(BOUND), Amount(requests=1, tokens=500)
    for _ in range(100):
        assert hold.exceeded("anonymous", one, alone=True) is None
        hold.take("anonymous", one)

    assert hold.exceeded("anonymous", one, alone=True) is Exceeded.WHOLE


def test_each_part_is_bounded_by_itself() -> None:
    hold = BoundedUsage(BOUND)

    assert hold.exceeded("a", Amount(body_bytes=10_001), alone=True) is Exceeded.WHOLE
    assert hold.exceeded("a", Amount(tokens=50_001), alone=True) is Exceeded.WHOLE
    assert hold.exceeded("a", Amount(body_bytes=10_000, tokens=50_000), alone=True) is None
