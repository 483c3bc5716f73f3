"""The figures of an overload, from requests whose times are given."""

import pytest
from harness.event_client import Answer
from harness.overload_figures import Phase, Sample, Sent, Watched, summary

LONE_AT_FIRST, LONE_AT_LAST = Phase(0, 1), Phase(70, 71)
CAPACITY = Phase(1, 31)
BEFORE, DURING, AFTER = Phase(31, 41), Phase(41, 51), Phase(51, 70)


def answered(due, first_token_ms, total_ms=500.0, events=16):
    answer = Answer(200, first_token_ms / 1e3, total_ms / 1e3, tokens=events, has_usage=True, done=True)
    return Sent(due, answer, due + total_ms / 1e3)


def refused(due):
    return Sent(due, Answer(429, total_seconds=0.002, retry_after_seconds=4), due + 0.002)


def cut_off(due):
    """With its first token in time, and no end."""
    return Sent(due, Answer(200, 0.07, 0.2, tokens=3), due + 0.2)


def figures(*sent, samples=(), lone_at_last_ms=70.0):
    """Of a run in which all else is as it should be."""
    usual = [answered(0.5, 60), answered(70.5, lone_at_last_ms), answered(10, 80), refused(45)]
    usual += [answered(at, 80) for at in (32.0, 36.0, 69.0)]
    watched = Watched(sorted([*usual, *sent], key=lambda one: one.due), samples)
    return summary(watched, (LONE_AT_FIRST, LONE_AT_LAST), CAPACITY, (BEFORE, DURING, AFTER))


def test_the_fleet_has_recovered_after_the_last_request_beyond_twice_the_time_alone():
    found = figures(answered(52, 3000), answered(53.5, 121), answered(60, 119), answered(38, 121))

    assert found.lone_first_token_ms == 60
    assert found.late_after == [(1.0, pytest.approx(3000)), (2.5, pytest.approx(121))]
    assert found.recovered_after_seconds == 2.5
    assert found.late_before == 1


@pytest.mark.parametrize("late", [refused(63), cut_off(63)])
def test_a_request_without_a_whole_answer_is_late(late):
    assert figures(answered(52, 3000), late).recovered_after_seconds == 12


def test_answers_whose_first_text_may_not_be_their_first_token_are_counted():
    assert figures(answered(52, 90, events=15), cut_off(53)).joined_answers == 1


def test_a_fleet_in_which_no_request_was_late_has_recovered_at_once():
    assert figures().recovered_after_seconds == 0


@pytest.mark.parametrize("lone_at_last_ms", [60.0, 150.0])
def test_a_disturbance_of_the_requests_alone_allows_no_later_ones(lone_at_last_ms):
    found = figures(answered(55, 121), lone_at_last_ms=lone_at_last_ms)

    assert (found.lone_first_token_ms, found.recovered_after_seconds) == (60, 4)


def test_late_requests_after_the_queue_has_gone_are_named_with_what_other_processes_took():
    queue = [Sample(51 + tenth / 10, 5 if tenth < 30 else 0, 0, 8, 0.0) for tenth in range(40)]
    busy = [Sample(at, 0, 0, 2, 2.0 * (at - 60)) for at in (60.0, 69.0)]

    found = figures(answered(52, 2000), answered(63.25, 141), samples=[*queue, *busy])

    assert found.queue_gone_after_seconds == pytest.approx(3, abs=0.2)
    assert found.others_cores == {"before": 0, "during": 0, "after": 1}
    text = "\n".join(found.lines())
    assert "1.0 s" not in text
    assert "late since then: at 12.2 s 141 ms" in text
    assert "after 1.00" in text
