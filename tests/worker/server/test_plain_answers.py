"""What a worker reports of its open plain answers."""

from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ANSWERS, PlainAnswer
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.server.plain_answers import PlainAnswers


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tokens(sequence_id: int, count: int = 1) -> SequenceUpdate:
    return SequenceUpdate(sequence_id=sequence_id, cached_tokens=0, token_ids=[7] * count)


def test_times_are_those_of_the_first_sequence_and_tokens_those_of_all() -> None:
    clock = Clock()
    answers = PlainAnswers(clock)
    with answers.open("router-a", 17, [4, 5]):
        clock.now += 1
        assert not answers.apply([SequenceUpdate(sequence_id=5, cached_tokens=0)])
        clock.now += 1
        assert answers.next_report() == {}

        assert answers.apply([tokens(5, 2)])
        clock.now += 1
        assert not answers.apply([tokens(4, 3), tokens(5)])

        assert answers.next_report() == {"router-a": [PlainAnswer(17, 1.0, 2.0, 6)]}
    assert answers.next_report() == {}


def test_a_report_is_the_same_until_tokens_come() -> None:
    clock = Clock()
    answers = PlainAnswers(clock)
    with answers.open("router-a", 1, [1]):
        answers.apply([tokens(1)])
        first = answers.next_report()
        clock.now += 5

        assert answers.next_report() == first


def test_answers_that_no_router_sent_are_not_reported() -> None:
    answers = PlainAnswers()
    with answers.open("", 0, [1]):
        assert not answers.apply([tokens(1), tokens(2)])
        assert answers.next_report() == {}
        assert answers.progress(1).first_token_after_seconds is not None


def test_reports_are_bounded_and_name_all_open_answers_by_turns() -> None:
    answers = PlainAnswers()
    open_answers = [answers.open("router-a", number, [number]) for number in range(3 * MAX_REPORTED_ANSWERS)]
    for one in open_answers:
        one.__enter__()
    older = range(2 * MAX_REPORTED_ANSWERS)
    answers.apply([tokens(number) for number in older])

    reported = [dispatches(answers) for _ in range(2)]
    answers.apply([tokens(number) for number in range(len(older), len(older) + 3)])
    reported += [dispatches(answers) for _ in range(3)]

    assert {len(report) for report in reported} == {MAX_REPORTED_ANSWERS}
    assert set(reported[0]) | set(reported[1]) == set(older)
    assert set(reported[2][:3]) == set(range(len(older), len(older) + 3))
    assert set().union(*reported[2:]) == set(range(len(older) + 3))


def dispatches(answers: PlainAnswers) -> list[int]:
    return [answer.dispatch for answer in answers.next_report().get("router-a", [])]
