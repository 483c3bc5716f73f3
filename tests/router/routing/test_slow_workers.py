"""Which workers are found to be much slower than their peers."""

import pytest

from warmfleet_router.routing.cost import CostTerms, RatesSource, StepRates, WorkerLoad
from warmfleet_router.routing.policies import Candidate
from warmfleet_router.routing.slow_workers import REFERENCE_PREFILL_TOKENS, SlowWorkerDetector

PEERS = ("slow", "b", "c")


def reported(uid: str, rates: StepRates) -> Candidate:
    return Candidate(uid, uid, True, 0, 0, 100, WorkerLoad(), rates, CostTerms(0, 0, 0, 0, 0))


def measured(base_seconds: float, *, knee_tokens: int = 0) -> StepRates:
    return StepRates(base_seconds, 0.001, 0.0, 0.0, RatesSource.MEASURED, knee_tokens)


def answer(
    detector: SlowWorkerDetector,
    uid: str,
    seconds: float,
    *,
    times: int = 1,
    expected: float = 0.1,
    at: float = 0,
) -> str:
    reason = ""
    for _ in range(times):
        reason = detector.record_answer(uid, seconds=seconds, expected_seconds=expected, peers=PEERS, now=at)
    return reason


def test_a_worker_ten_times_slower_than_its_rates_is_slow_after_eight_answers() -> None:
    detector = SlowWorkerDetector()
    for peer in PEERS[1:]:
        answer(detector, peer, 0.1, times=8)

    assert not answer(detector, "slow", 1.0, times=7)
    assert answer(detector, "slow", 1.0) == "10 times slower than its peers"


def test_one_slow_answer_does_not_make_a_slow_worker() -> None:
    detector = SlowWorkerDetector()
    answer(detector, "b", 0.1, times=8)
    answer(detector, "slow", 0.1, times=7)

    assert not answer(detector, "slow", 60.0)


def test_a_worker_is_not_slow_beside_answers_that_its_peers_gave_before_all_became_slow() -> None:
    detector = SlowWorkerDetector()
    for uid in PEERS:
        answer(detector, uid, 0.1, times=8, at=0)

    # From now on each answer takes ten times as long, and nearly all come from one worker.
    reasons = [answer(detector, "slow", 1.0, at=20 + second / 10) for second in range(80)]
    answer(detector, "b", 1.0, at=28)

    assert not any(reasons)
    assert not answer(detector, "slow", 1.0, at=28)


@pytest.mark.parametrize("times_as_often", [1, 2, 4])
def test_a_slow_worker_is_found_that_answers_more_often_than_its_peers(times_as_often: int) -> None:
    detector = SlowWorkerDetector()
    reasons = set()
    for second in range(20):
        for peer in PEERS[1:]:
            answer(detector, peer, 0.1, at=second)
        parts = range(times_as_often)
        reasons |= {answer(detector, "slow", 1.0, at=second + part / times_as_often) for part in parts}

    assert "10 times slower than its peers" in reasons


def test_when_all_workers_are_slow_none_is_reported() -> None:
    detector = SlowWorkerDetector()
    reasons = [answer(detector, uid, 2.0) for _ in range(20) for uid in PEERS]

    assert not any(reasons)


def test_a_worker_without_peers_or_with_quick_answers_is_not_slow() -> None:
    detector = SlowWorkerDetector()
    assert not answer(detector, "slow", 5.0, times=20)

    answer(detector, "b", 0.001, times=8)
    assert not answer(detector, "slow", 0.2, times=20)


def test_a_probe_is_judged_by_itself() -> None:
    detector = SlowWorkerDetector()
    answer(detector, "b", 0.1, times=8)

    def probe(seconds: float) -> str:
        return detector.record_answer(
            "slow", seconds=seconds, expected_seconds=0.1, peers=PEERS, now=0, alone=True
        )

    assert probe(2.0)
    assert not probe(0.2)


def test_old_answers_are_forgotten() -> None:
    detector = SlowWorkerDetector()
    answer(detector, "b", 0.1, times=8, at=0)

    assert not answer(detector, "slow", 5.0, times=8, at=500)


def test_a_worker_whose_reported_steps_are_ten_times_slower_is_slow_after_eight_reports() -> None:
    detector = SlowWorkerDetector()
    slow, *peers = (
        reported("slow", measured(1.0)),
        reported("b", measured(0.04)),
        reported("c", measured(0.04)),
    )

    reasons = [detector.record_report(slow, [slow, *peers]) for _ in range(8)]

    assert reasons == [""] * 7 + ["steps 10 times slower than its peers'"]


def test_a_fit_without_time_for_the_step_that_is_compared_is_no_measurement() -> None:
    # Of few steps, all alike, a fit may attribute the whole time to tokens above the knee.
    empty = measured(0.0, knee_tokens=2 * REFERENCE_PREFILL_TOKENS)
    new, other = reported("new", empty), reported("b", measured(1.0))
    detector = SlowWorkerDetector()

    reasons = [detector.record_report(picked, [new, other]) for picked in (new, other) for _ in range(8)]

    assert reasons == [""] * 16


def test_quick_steps_are_not_slow_however_quick_those_of_peers_are() -> None:
    detector = SlowWorkerDetector()
    new, slow, other = (
        reported(uid, StepRates(seconds, 0.0, 0.0, 0.0, RatesSource.MEASURED, 0))
        for uid, seconds in (("new", 0.009), ("slow", 0.011), ("b", 0.001))
    )

    assert [detector.record_report(new, [new, other]) for _ in range(16)] == [""] * 16
    assert [detector.record_report(slow, [slow, other]) for _ in range(8)][-1] != ""
