"""Retries stay a share of the requests."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.proxy.retry_budget import RetryBudget, RetryBudgetSettings


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_quiet_fleet_has_its_floor_and_a_busy_one_a_fifth_more() -> None:
    clock = Clock()
    budget = RetryBudget(RetryBudgetSettings(floor_retries=3), clock)

    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    for _ in range(10):
        budget.request()
    assert [budget.take() for _ in range(3)] == [True, True, False]


def test_the_window_passes() -> None:
    clock = Clock()
    budget = RetryBudget(RetryBudgetSettings(floor_retries=1, window_seconds=60), clock)
    assert budget.take()
    clock.now = 59.9
    assert not budget.take()
    clock.now = 60.0
    assert budget.take()


@given(
    st.lists(st.tuples(st.sampled_from(["request", "retry"]), st.floats(0, 5)), max_size=300),
    st.integers(0, 5),
    st.floats(0, 1),
)
def test_no_window_holds_more_retries_than_its_share(
    events: list[tuple[str, float]], floor: int, ratio: float
) -> None:
    clock = Clock()
    window = 10
    budget = RetryBudget(RetryBudgetSettings(floor_retries=floor, ratio=ratio, window_seconds=window), clock)
    requests: list[int] = []
    retries: list[int] = []
    for kind, seconds in events:
        clock.now += seconds
        second = int(clock.now)
        recent = [at for at in requests if at > second - window]
        granted = [at for at in retries if at > second - window]
        if kind == "request":
            budget.request()
            requests.append(second)
        elif budget.take():
            retries.append(second)
            assert len(granted) + 1 <= floor + ratio * len(recent)
        else:
            assert len(granted) + 1 > floor + ratio * len(recent)
        assert len(budget._seconds) <= window
