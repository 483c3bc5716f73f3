"""Mark, wait, lower: which step a shrink is at."""

import pytest

from warmfleet_operator.replicas.shrink_step import Marked, Step, shrink_step

LIVE = frozenset("abcd")


def step(
    wanted: int,
    marked: Marked | None = None,
    now: float = 0.0,
    live: frozenset[str] = LIVE,
    *,
    handing_over: bool = False,
) -> Step:
    return shrink_step(
        current=4, wanted=wanted, marked=marked, live=live, now_seconds=now, handing_over=handing_over
    )


@pytest.mark.parametrize("wanted", [4, 5, 0])
def test_growth_and_the_end_of_all_are_written_at_once(wanted: int) -> None:
    assert step(wanted) is Step.SET


def test_a_number_that_takes_no_pod_is_written_at_once() -> None:
    """A quota has refused the fourth."""
    assert step(3, live=frozenset("abc")) is Step.SET


def test_victims_are_marked_then_two_seconds_pass_then_the_number_is_lowered() -> None:
    marked = Marked(3, ("a",), at_seconds=10.0, begun_seconds=10.0)

    assert step(3) is Step.MARK
    assert step(3, marked, 11.9) is Step.WAIT
    assert step(3, marked, 12.0) is Step.SET


def test_a_handover_is_waited_for_but_no_longer_than_its_time() -> None:
    marked = Marked(3, ("a",), at_seconds=10.0, begun_seconds=10.0)

    assert step(3, marked, 14.9, handing_over=True) is Step.WAIT
    assert step(3, marked, 15.0, handing_over=True) is Step.SET
    assert step(3, marked, 11.9, handing_over=False) is Step.WAIT


def test_another_number_or_a_victim_that_went_by_itself_needs_other_marks() -> None:
    marked = Marked(3, ("a",), at_seconds=10.0, begun_seconds=10.0)

    assert step(2, marked, 12.0) is Step.MARK
    assert step(2, marked, 12.0, live=frozenset("bcd")) is Step.MARK


def test_a_number_that_keeps_changing_is_lowered_all_the_same() -> None:
    marked = Marked(3, ("a",), at_seconds=19.0, begun_seconds=10.0)

    assert step(2, marked, 20.0) is Step.SET
